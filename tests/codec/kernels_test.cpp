// SPDX-License-Identifier: Apache-2.0

// The vector kernels against plain loops.

#include "codec/kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "codec/codec_common.hpp"
#include "core/word.hpp"
#include "sparsecast/codec.hpp"
#include "support/masters.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"

namespace sparsecast::test {
namespace {

/// Entries and bytes that a kernel may write beyond what it found (cpu/kernels.hpp).
constexpr std::size_t kSlackEntries = 64;

/// Calls work(count) for all lengths around the vector widths and for a whole tile.
template <class Work>
void for_each_length(const Work& work) {
  for (std::uint32_t count = 0; count <= 200; ++count) work(count);
  for (const std::uint32_t count : {511U, 512U, 513U, 1025U, kTileElems - 1, kTileElems}) work(count);
}

/// Coded words of an element width: mostly plus or minus a few ULP, some of any size, never 0.
Bytes coded_words(Random& random, std::uint32_t count, std::size_t size) {
  Bytes words(count * size);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint64_t distance = random.chance(0.8) ? random.between(1, 3) : random.next() >> random.below(64);
    write_element(words.data(), size, i, random.chance(0.5) ? distance : 0 - distance);
    if (read_element(words.data(), size, i) == 0) write_element(words.data(), size, i, 1);
  }
  return words;
}

TEST(CpuKernels, SignBitsAreTheHighestBits) {
  SCOPED_TRACE(seed_note());
  Random random(run_seed());
  for (const std::size_t size : {1U, 2U, 4U, 8U}) {
    for_each_length([&](std::uint32_t count) {
      const Bytes words = coded_words(random, count, size);
      Bytes plane((count + 63) / 64 * 8 + 8, std::byte{0});
      cpu::sign_bits(words.data(), count, size, plane.data());
      for (std::uint32_t i = 0; i < (count + 63) / 64 * 64; ++i) {
        const bool expected = i < count && (read_element(words.data(), size, i) >> (8 * size - 1)) != 0;
        const bool found = (static_cast<unsigned>(plane[i / 8]) >> (i % 8) & 1) != 0;
        ASSERT_EQ(found, expected) << size << " bytes, bit " << i << " of " << count;
      }
    });
  }
}

TEST(CpuKernels, ExceptionsAreTheMagnitudesWithHighBits) {
  SCOPED_TRACE(seed_note());
  Random random(run_seed());
  for (const std::size_t size : {1U, 2U, 4U, 8U}) {
    for_each_length([&](std::uint32_t count) {
      const Bytes words = coded_words(random, count, size);
      for (const std::uint32_t low_bits : {0U, 1U, 2U, static_cast<std::uint32_t>(random.below(8 * size))}) {
        std::vector<std::uint32_t> expected;
        with_word(size, [&]<class T>() {
          for (std::uint32_t i = 0; i < count; ++i) {
            const std::uint64_t magnitude = ulp_magnitude(load_word<T>(words.data(), i));
            if (magnitude >> low_bits != 0) expected.push_back(i);
          }
        });
        std::vector<std::uint32_t> found(count + kSlackEntries);
        found.resize(cpu::find_exceptions(words.data(), count, size, low_bits, found.data()));
        ASSERT_EQ(found, expected) << size << " bytes, " << count << " words, low bits " << low_bits;
      }
    });
  }
}

TEST(CpuKernels, QuotientBitsAreTheSumOverTheGaps) {
  SCOPED_TRACE(seed_note());
  Random random(run_seed());
  for_each_length([&](std::uint32_t count) {
    std::vector<std::uint32_t> gaps(count);
    for (std::uint32_t& gap : gaps) gap = static_cast<std::uint32_t>(random.next() >> random.between(42, 63));
    for (std::uint32_t kp = 0; kp <= 22; ++kp) {
      std::uint32_t expected = 0;
      for (const std::uint32_t gap : gaps) {
        const std::uint32_t quotient = gap >> kp;
        std::uint32_t tail = 0;
        while (quotient >= 8 && (quotient - 7) >> (tail + 1) != 0) ++tail;
        expected += quotient < 8 ? quotient : 8 + 2 * tail;
      }
      ASSERT_EQ(cpu::quotient_bits(gaps.data(), count, kp), expected) << count << " gaps, kp " << kp;
    }
  });
}

TEST(CpuKernels, CompareFindsTheElementsThatDiffer) {
  SCOPED_TRACE(seed_note());
  Random random(run_seed());
  for (const std::size_t size : {1U, 2U, 4U, 8U}) {
    for_each_length([&](std::uint32_t count) {
      const Bytes old = coded_words(random, count, size);
      Bytes current = old;
      std::vector<std::uint32_t> expected;
      const double density = random.log_uniform(0.001, 1);
      for (std::uint32_t i = 0; i < count; ++i) {
        if (!random.chance(density)) continue;
        // One bit, any bit: a comparison of values or of a part of the word would miss some.
        const std::uint64_t bit = std::uint64_t{1} << random.below(8 * size);
        write_element(current.data(), size, i, read_element(old.data(), size, i) ^ bit);
        expected.push_back(i);
      }
      std::vector<std::uint32_t> found(count + kSlackEntries);
      found.resize(cpu::compare_tile(current.data(), old.data(), count, size, found.data()));
      ASSERT_EQ(found, expected) << size << " bytes, " << count << " elements";
    });
  }
}

TEST(CpuKernels, CastRoundsKeepsTheOldBitsAndFindsTheDifferences) {
  SCOPED_TRACE(seed_note());
  Random random(run_seed());
  for_each_length([&](std::uint32_t count) {
    Bytes master(count * 4 + 1);
    Bytes target(count * 2 + 1);
    Bytes cast(count * 2 + 1);
    // Any alignment must work.
    std::byte* const masters = master.data() + random.below(2);
    std::byte* const old = target.data() + random.below(2);
    std::vector<std::uint32_t> expected;
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto bits = static_cast<std::uint32_t>(random.next());
      write_element(masters, 4, i, bits);
      write_element(old, 2, i, random.chance(0.9) ? slow_bf16(bits) : static_cast<std::uint16_t>(random.next()));
      write_element(cast.data(), 2, i, slow_bf16(bits));
      if (read_element(old, 2, i) != slow_bf16(bits)) expected.push_back(i);
    }
    const Bytes before = target;
    Bytes out(count * 2 + 1);
    std::vector<std::uint32_t> found(count + kSlackEntries);
    found.resize(cpu::cast_tile(masters, count, old, out.data(), nullptr, found.data()));
    ASSERT_EQ(found, expected) << count;
    ASSERT_EQ(out, cast) << count;
    ASSERT_EQ(target, before) << count;
    // Onto the old bits themselves.
    Bytes kept(count * 2);
    found.resize(count + kSlackEntries);
    found.resize(cpu::cast_tile(masters, count, old, old, kept.data(), found.data()));
    ASSERT_EQ(found, expected) << count;
    const std::ptrdiff_t skew = old - target.data();
    ASSERT_TRUE(std::equal(kept.begin(), kept.end(), before.begin() + skew)) << count;
    ASSERT_TRUE(std::equal(old, old + count * 2, cast.begin())) << count;
  });
}

}  // namespace
}  // namespace sparsecast::test
