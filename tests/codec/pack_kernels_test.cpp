// SPDX-License-Identifier: Apache-2.0

// The vector kernels that write and read codes, and those for coded words, against plain loops.

#include "codec/pack_kernels.hpp"
#include "codec/kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "codec/codec_common.hpp"
#include "codec/unpack_kernels.hpp"
#include "codec/word_kernels.hpp"
#include "core/word.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"
#include "support/simd_targets.hpp"

namespace sparsecast::test {
namespace {

using Numbers = std::vector<std::uint32_t>;

/// Numbers of up to `bits` bits: small ones, or of every width, in runs.
Numbers random_numbers(Random& random, std::uint32_t count, std::uint32_t bits) {
  Numbers numbers(count);
  bool any = false;
  for (std::uint32_t& number : numbers) {
    if (random.chance(0.05)) any = random.chance(0.4);
    const std::uint64_t width = any ? random.between(1, bits) : random.between(1, std::min(bits, 4U));
    number = static_cast<std::uint32_t>(random.next() >> (64 - width));
  }
  return numbers;
}

/// A string begun at a bit that is not the first of a byte.
class Written {
 public:
  Written(std::uint32_t begin, std::size_t bits) : bytes_(bits / 8 + 64, std::byte{0}), writer_(bytes_.data(), begin) {}
  BitWriter& writer() { return writer_; }
  ConstBytes bytes() const { return bytes_; }
  /// The bits up to the end, and whether all after them are zero.
  bool operator==(const Written& other) const {
    return writer_.position() == other.writer_.position() &&
           std::equal(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>((writer_.position() + 7) / 8),
                      other.bytes_.begin());
  }

 private:
  Bytes bytes_;
  BitWriter writer_;
};

struct Case {
  Numbers numbers;
  std::uint32_t count = 0;
  std::uint32_t parameter = 0;
};

/// Compares what kernel(case, writer) writes with what plain(number, case, writer) does, for each instruction set.
template <class Kernel, class Plain>
void compare(std::uint32_t most_bits, std::uint32_t most_parameter, const Kernel& kernel, const Plain& plain) {
  SCOPED_TRACE(seed_note());
  for_each_target([&] {
    for (std::uint64_t round = 0; round < 300; ++round) {
      Random random(case_seed(run_seed(), round));
      Case c;
      c.count = static_cast<std::uint32_t>(round < 4 ? random.between(10'000, kTileElems) : random.below(200));
      c.numbers = random_numbers(random, c.count, static_cast<std::uint32_t>(random.between(1, most_bits)));
      c.parameter = static_cast<std::uint32_t>(random.between(0, most_parameter));
      const auto begin = static_cast<std::uint32_t>(random.below(64));
      std::size_t bits = 1024;
      for (const std::uint32_t number : c.numbers) bits += 64 + (most_bits < 20 ? number : 0);
      Written found(begin, bits);
      Written expected(begin, bits);
      kernel(c, found.writer());
      for (const std::uint32_t number : c.numbers) plain(number, c, expected.writer());
      ASSERT_TRUE(found == expected) << "round " << round;
    }
  });
}

TEST(PackKernels, FieldsAreTheLowBits) {
  compare(
      32, 32, [](const Case& c, BitWriter& out) { cpu::put_fields(c.numbers.data(), c.count, c.parameter, out); },
      [](std::uint32_t number, const Case& c, BitWriter& out) {
        if (c.parameter != 0) out.put(number & ~std::uint32_t{0} >> (32 - c.parameter), c.parameter);
      });
}

TEST(PackKernels, UnaryIsZerosAndAOne) {
  compare(
      8, 4, [](const Case& c, BitWriter& out) { cpu::put_unary(c.numbers.data(), c.count, c.parameter, out); },
      [](std::uint32_t number, const Case& c, BitWriter& out) { out.put_unary(number >> c.parameter); });
}

TEST(PackKernels, LargeQuotientsAreEscaped) {
  Numbers escaped;
  Numbers expected;
  compare(
      22, 10,
      [&](const Case& c, BitWriter& out) {
        escaped.clear();
        expected.clear();
        cpu::put_quotients(c.numbers.data(), c.count, c.parameter, out, escaped);
      },
      [&](std::uint32_t number, const Case& c, BitWriter& out) {
        const std::uint32_t quotient = number >> c.parameter;
        out.put_unary(quotient_zeros(quotient));
        if (quotient >= kEscape) expected.push_back(quotient);
        ASSERT_TRUE(expected.size() <= escaped.size() && std::equal(expected.begin(), expected.end(), escaped.begin()));
      });
  EXPECT_EQ(escaped, expected);
}

TEST(PackKernels, WidthsAndTails) {
  compare(
      32, 0, [](const Case& c, BitWriter& out) { cpu::put_widths(c.numbers.data(), c.count, 6, out); },
      [](std::uint32_t number, const Case&, BitWriter& out) { out.put(bit_width32(number), 6); });
  compare(
      32, 0, [](const Case& c, BitWriter& out) { cpu::put_unary_tail_widths(c.numbers.data(), c.count, out); },
      [](std::uint32_t number, const Case&, BitWriter& out) { out.put_unary(bits_below_highest(number)); });
  compare(
      32, 0, [](const Case& c, BitWriter& out) { cpu::put_tails(c.numbers.data(), c.count, out); },
      [](std::uint32_t number, const Case&, BitWriter& out) {
        const std::uint32_t bits = bits_below_highest(number);
        if (bits != 0) out.put(number ^ 1U << bits, bits);
      });
}

TEST(PackKernels, CountsWidthsAndListsGaps) {
  SCOPED_TRACE(seed_note());
  for_each_target([&] {
    for (std::uint64_t round = 0; round < 100; ++round) {
      Random random(case_seed(run_seed(), round));
      const auto count = static_cast<std::uint32_t>(random.between(1, round < 4 ? 2000 : 100));
      const Numbers numbers = random_numbers(random, count, 32);
      std::uint32_t found[33] = {};
      std::uint32_t expected[33] = {};
      cpu::count_widths(numbers.data(), count, found);
      for (const std::uint32_t number : numbers) ++expected[bit_width32(number)];
      ASSERT_TRUE(std::ranges::equal(found, expected));
      Numbers positions(count);
      std::uint32_t next = 0;
      for (std::uint32_t i = 0; i < count; ++i) {
        positions[i] = next + numbers[i] % 1000;
        next = positions[i] + 1;
      }
      Numbers gaps(count);
      cpu::list_gaps(positions.data(), count, gaps.data());
      for (std::uint32_t i = 0; i < count; ++i) ASSERT_EQ(gaps[i], numbers[i] % 1000) << i;
    }
  });
}

TEST(UnpackKernels, OnesAreListedInOrderAndCounted) {
  SCOPED_TRACE(seed_note());
  for_each_target([&] {
    for (std::uint64_t round = 0; round < 200; ++round) {
      Random random(case_seed(run_seed(), round));
      Bytes bytes(random.below(300) * 4);
      const double density = random.unit() * random.unit();
      Numbers expected;
      const std::uint64_t begin = bytes.empty() ? 0 : random.below(std::min<std::size_t>(bytes.size() * 8, 300));
      std::uint64_t ones = 0;
      for (std::uint64_t bit = 0; bit < bytes.size() * 8; ++bit) {
        if (!random.chance(density)) continue;
        bytes[bit / 8] |= static_cast<std::byte>(1U << bit % 8);
        ++ones;
        if (bit >= begin) expected.push_back(static_cast<std::uint32_t>(bit - begin));
      }
      ASSERT_EQ(cpu::count_ones(bytes), ones);
      const auto asked = static_cast<std::uint32_t>(random.below(expected.size() + 10));
      Numbers found(asked + cpu::kOnesSlack);
      const std::uint32_t count = cpu::list_ones(bytes, begin, asked, found.data());
      ASSERT_EQ(count, std::min<std::size_t>(asked, expected.size()));
      ASSERT_TRUE(std::equal(found.begin(), found.begin() + count, expected.begin()));
    }
  });
}

TEST(WordKernels, CodeAndAdvanceAsTheArithmeticDoes) {
  SCOPED_TRACE(seed_note());
  constexpr ValueCodec kValues[] = {ValueCodec::kRaw, ValueCodec::kXor, ValueCodec::kUlp};
  for_each_target([&] {
    for (std::uint64_t round = 0; round < 240; ++round) {
      Random random(case_seed(run_seed(), round));
      const ValueCodec values = kValues[round % 3];
      // Pairs are in bytes alone.
      const auto order = static_cast<UlpOrder>(random.below(round / 3 % 4 == 0 ? 4 : 2));
      with_word(std::size_t{1} << round / 3 % 4, [&]<class T>() {
        const auto count = static_cast<std::uint32_t>(random.below(round < 24 ? 3000 : 200));
        const double density = random.unit();
        std::vector<T> old_bits(count);
        std::vector<T> new_bits(count);
        std::vector<T> expected;
        std::vector<T> expected_before;
        std::vector<T> expected_after;
        for (std::uint32_t i = 0; i < count; ++i) {
          old_bits[i] = static_cast<T>(random.next());
          new_bits[i] = random.chance(density) ? static_cast<T>(random.next()) : old_bits[i];
          if (new_bits[i] == old_bits[i]) continue;
          expected.push_back(values == ValueCodec::kRaw   ? new_bits[i]
                             : values == ValueCodec::kXor ? static_cast<T>(new_bits[i] ^ old_bits[i])
                                                          : ulp_difference(new_bits[i], old_bits[i], order));
          expected_before.push_back(old_bits[i]);
          expected_after.push_back(new_bits[i]);
        }
        std::vector<T> coded(count + cpu::kCodedSlack);
        std::vector<T> before(coded.size());
        std::vector<T> after(coded.size());
        const bool bits_too = random.chance(0.5);
        Bytes bitmap(count / 8 + 1 + cpu::kBitmapSlack, std::byte{0xA5});
        const std::uint32_t found = cpu::code_changed(
            reinterpret_cast<const std::byte*>(new_bits.data()), reinterpret_cast<const std::byte*>(old_bits.data()),
            count, sizeof(T), values, order, coded.data(), bits_too ? before.data() : nullptr,
            bits_too ? after.data() : nullptr, bits_too ? bitmap.data() : nullptr);
        ASSERT_EQ(found, expected.size());
        if (bits_too) {
          for (std::uint32_t i = 0; i < (count + 7) / 8 * 8; ++i) {
            ASSERT_EQ((static_cast<unsigned>(bitmap[i / 8]) >> i % 8 & 1) != 0,
                      i < count && new_bits[i] != old_bits[i]);
          }
          std::vector<T> gathered(count + cpu::kCodedSlack);
          ASSERT_EQ(cpu::gather_marked(reinterpret_cast<const std::byte*>(old_bits.data()), bitmap.data(), count,
                                       sizeof(T), gathered.data()),
                    found);
          ASSERT_TRUE(std::equal(expected_before.begin(), expected_before.end(), gathered.begin()));
        }
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(), coded.begin()));
        if (bits_too) {
          ASSERT_TRUE(std::equal(expected_before.begin(), expected_before.end(), before.begin()));
          ASSERT_TRUE(std::equal(expected_after.begin(), expected_after.end(), after.begin()));
        }
        std::vector<T> moved(count);
        cpu::advance_words(expected_before.data(), coded.data(), found, sizeof(T), values, order, false, moved.data());
        ASSERT_TRUE(std::equal(expected_after.begin(), expected_after.end(), moved.begin()));
        if (values == ValueCodec::kRaw) return;
        cpu::advance_words(expected_after.data(), coded.data(), found, sizeof(T), values, order, true, moved.data());
        ASSERT_TRUE(std::equal(expected_before.begin(), expected_before.end(), moved.begin()));
      });
    }
  });
}

TEST(WordKernels, LowBitsOfMagnitudesArePutCountedAndReadBack) {
  SCOPED_TRACE(seed_note());
  for_each_target([&] {
    for (std::uint64_t round = 0; round < 240; ++round) {
      Random random(case_seed(run_seed(), round));
      with_word(std::size_t{1} << round % 4, [&]<class T>() {
        constexpr std::uint32_t kWidth = 8 * sizeof(T);
        const auto count = static_cast<std::uint32_t>(random.below(round < 24 ? 3000 : 200));
        const auto most_bits = static_cast<std::uint32_t>(random.below(kWidth));
        std::vector<T> coded(count);
        for (T& word : coded) {
          const T magnitude = static_cast<T>(random.next() & ((std::uint64_t{1} << most_bits) - 1));
          word = ulp_from_magnitude(magnitude, random.chance(0.5));
        }
        const auto exceptions = [&](std::uint32_t bits) {
          return static_cast<std::uint32_t>(std::count_if(
              coded.begin(), coded.end(), [&](T word) { return (std::uint64_t{ulp_magnitude(word)} >> bits) != 0; }));
        };
        const auto most = static_cast<std::uint32_t>(random.below(count / 4 + 1));
        std::uint32_t expected_bits = 0;
        while (exceptions(expected_bits) > most) ++expected_bits;
        ASSERT_EQ(cpu::least_low_bits(reinterpret_cast<const std::byte*>(coded.data()), count, sizeof(T), most),
                  expected_bits);

        const auto width = static_cast<std::uint32_t>(random.below(kWidth));
        const auto begin = static_cast<std::uint32_t>(random.below(64));
        const std::size_t bits = begin + std::uint64_t{count} * width;
        Written found(begin, bits + 1024);
        Written expected(begin, bits + 1024);
        cpu::put_low_bits(coded.data(), count, width, found.writer());
        std::vector<T> fields(count);
        for (std::uint32_t i = 0; i < count; ++i) {
          fields[i] = static_cast<T>(ulp_magnitude(coded[i]) & ((std::uint64_t{1} << width) - 1));
          expected.writer().put_long(fields[i], width);
        }
        ASSERT_TRUE(found == expected);
        std::vector<T> read(count, T{0x5A});
        // The string ends with the fields, so that nothing beyond them may be read.
        cpu::read_fields(found.bytes().first((bits + 7) / 8), begin, count, width, sizeof(T), read.data());
        ASSERT_EQ(read, fields);
      });
    }
  });
}

TEST(UnpackKernels, MagnitudesGetTheirSigns) {
  SCOPED_TRACE(seed_note());
  for_each_target([&] {
    for (std::uint64_t round = 0; round < 200; ++round) {
      Random random(case_seed(run_seed(), round));
      with_word(std::size_t{1} << round % 4, [&]<class T>() {
        const auto count = static_cast<std::uint32_t>(random.below(300));
        std::vector<T> words(count);
        std::vector<T> expected(count);
        Bytes signs(std::size_t{(count + 31) / 32} * 4);
        bool fits = true;
        constexpr T kMost = static_cast<T>(static_cast<T>(~T{0}) >> 1);
        for (std::uint32_t i = 0; i < count; ++i) {
          const bool down = random.chance(0.5);
          words[i] = random.chance(0.002) ? kMost : static_cast<T>(random.next() & (kMost >> 1));
          if (down) signs[i / 8] |= static_cast<std::byte>(1U << i % 8);
          fits = fits && (down || words[i] != kMost);
          expected[i] = ulp_from_magnitude(words[i], down);
        }
        ASSERT_EQ(cpu::sign_magnitudes(signs, count, sizeof(T), words.data()), fits);
        ASSERT_EQ(words, expected);
      });
    }
  });
}

}  // namespace
}  // namespace sparsecast::test
