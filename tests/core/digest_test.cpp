// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/digest.hpp"
#include "sparsecast/tensor.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "core/digest_changes.hpp"
#include "core/tensor_view.hpp"
#include "core/word.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"
#include "support/simd_targets.hpp"
#include "support/strided_state.hpp"

namespace sparsecast::test {
namespace {

constexpr DType kByWidth[] = {DType::kF8E4M3, DType::kBF16, DType::kF32, DType::kF64};

Hash128 random_key(Random& random) { return {random.next(), random.next()}; }

Bytes random_bits(Random& random, std::size_t bytes) {
  Bytes bits(bytes);
  for (std::byte& b : bits) b = static_cast<std::byte>(random.next());
  return bits;
}

std::uint64_t word_of(std::size_t size, std::uint64_t bits) {
  return with_word(size, [&]<class T>() { return digest_word(static_cast<T>(bits)); });
}

TEST(StateDigest, ReplacingElementsGivesTheDigestOfTheNewBits) {
  SCOPED_TRACE(seed_note());
  for (std::uint64_t round = 0; round < 400; ++round) {
    Random random(case_seed(run_seed(), round));
    const DType dtype = kByWidth[round % 4];
    const std::size_t size = element_size(dtype);
    const std::uint64_t count = random.between(1, 300);
    const std::uint64_t first = random.chance(0.5) ? 0 : random.next() >> 20;
    const Hash128 key = random_key(random);
    Bytes bits = random_bits(random, count * size);
    StateDigest running = digest_span(key, dtype, first, bits);
    DigestSum change;
    with_word(size, [&]<class T>() {
      DigestChanges<T> changes(key);
      // One by one, in runs around the width of vectors, and in runs of more than a batch.
      for (std::uint64_t runs = random.below(20); runs > 0; --runs) {
        std::vector<std::uint32_t> at(random.chance(0.1) ? random.below(1500) : random.below(20));
        std::vector<T> before;
        std::vector<T> after;
        for (std::uint32_t& place : at) {
          place = static_cast<std::uint32_t>(random.below(count));
          before.push_back(load_word<T>(bits.data(), place));
          after.push_back(random.chance(0.1) ? static_cast<T>(~T{0}) : static_cast<T>(random.next()));
          store_word(bits.data(), place, after.back());
        }
        const auto n = static_cast<std::uint32_t>(at.size());
        if (random.chance(0.5)) {
          changes.add_run(first, at.data(), before.data(), after.data(), n);
        } else {
          changes.add_each(n, [&](std::uint32_t i, const auto& record) { record(first + at[i], before[i], after[i]); });
        }
      }
      change = changes.take();
    });
    running += StateDigest{{change.lo, change.hi}};
    ASSERT_EQ(running, digest_span(key, dtype, first, bits)) << "round " << round;
  }
}

TEST(StateDigest, TakingBackWhatWasAddedLeavesNothing) {
  SCOPED_TRACE(seed_note());
  Random random(run_seed());
  for (int i = 0; i < 10'000; ++i) {
    const StateDigest a{{random.next(), random.next()}};
    const StateDigest b{{random.next(), random.next()}};
    StateDigest sum = a;
    sum += b;
    sum -= b;
    ASSERT_EQ(sum, a);
    DigestSum change;
    const std::uint64_t index = random.next();
    const std::uint64_t bits = random.next();
    const std::uint64_t other = random.next();
    DigestChanges<std::uint64_t> changes(a.value);
    changes.add(index, bits, other);
    change = changes.take();
    ASSERT_TRUE(bits == other || change.lo != 0 || change.hi != 0);
    changes.add(index, bits, other);
    changes.add(index, other, bits);
    change = changes.take();
    ASSERT_EQ(change.lo, 0U);
    ASSERT_EQ(change.hi, 0U);
  }
}

TEST(StateDigest, PiecesOfATensorAddUpToTheWhole) {
  SCOPED_TRACE(seed_note());
  for (std::uint64_t round = 0; round < 200; ++round) {
    Random random(case_seed(run_seed(), round));
    const DType dtype = kByWidth[round % 4];
    const std::size_t size = element_size(dtype);
    const std::uint64_t count = random.below(5'000);
    const Hash128 key = random_key(random);
    const Bytes bits = random_bits(random, count * size);
    std::vector<StateDigest> parts;
    for (std::uint64_t first = 0; first < count;) {
      const std::uint64_t piece = std::min(count - first, random.below(random.chance(0.5) ? 8 : 2'000));
      parts.push_back(digest_span(key, dtype, first, ConstBytes(bits).subspan(first * size, piece * size)));
      first += piece;
    }
    ASSERT_EQ(sum(parts), digest_span(key, dtype, 0, bits)) << "round " << round;
  }
}

TEST(StateDigest, OfATableIsTheSameForAnyNumberOfThreadsAndTheSumOverItsElements) {
  SCOPED_TRACE(seed_note());
  Random random(run_seed());
  // More than one slice of digest_tensors in the first tensor; none in the last.
  const TensorTable table(
      {{"a", DType::kU8, {(1U << 20) + 77}}, {"b", DType::kBF16, {3, 41}}, {"c", DType::kF32, {0}}});
  TensorState state;
  for (const TensorSpec& spec : table) state.push_back(random_bits(random, spec.bytes()));
  const std::vector<StateDigest> found = digest_tensors(table, refs_to(table, views(state)), 1);
  EXPECT_EQ(digest_tensors(table, refs_to(table, views(state)), 3), found);
  for (std::size_t t = 0; t < table.size(); ++t) {
    const Hash128 key = table.digest_key(t);
    const std::size_t size = element_size(table[t].dtype);
    DigestSum slow;
    for (std::uint64_t i = 0; i < table[t].elements(); ++i) {
      const std::uint64_t bits = read_element(state[t].data(), size, i);
      digest_add(slow, digest_weight(key.lo, key.hi, i), word_of(size, bits));
    }
    EXPECT_EQ(found[t], (StateDigest{{slow.lo, slow.hi}})) << table[t].name;
  }
}

TEST(StateDigest, OfABoxCountsItsElementsAsThoseOfTheTensorItIsPartOf) {
  SCOPED_TRACE(seed_note());
  for (std::uint64_t round = 0; round < 200; ++round) {
    Random random(case_seed(run_seed(), round));
    const TensorTable plain(random_specs(random));
    const TensorState state = random_state(random, plain);
    std::vector<DigestOrigin> origins;
    std::vector<Placement> counts;
    for (const TensorSpec& spec : plain) {
      counts.push_back(random_placement(random, spec.shape));
      origins.push_back({random_key(random), random.below(1'000), counts.back().strides});
      if (random.chance(0.3)) origins.back().strides.clear();
    }
    const TensorTable table({plain.begin(), plain.end()}, origins);
    std::vector<StateDigest> expected;
    for (std::size_t t = 0; t < table.size(); ++t) {
      StateDigest& digest = expected.emplace_back();
      const std::size_t size = element_size(table[t].dtype);
      for (std::uint64_t i = 0; i < table[t].elements(); ++i) {
        const std::uint64_t at = origins[t].first + (origins[t].strides.empty() ? i : counts[t].offset(i));
        digest += digest_span(origins[t].key, table[t].dtype, at, ConstBytes(state[t]).subspan(i * size, size));
      }
    }
    EXPECT_EQ(table.hash(), plain.hash());
    ASSERT_EQ(digest_tensors(table, refs_to(table, views(state)), 1), expected) << "round " << round;
    const StridedState strided(random, table, state);
    ASSERT_EQ(digest_tensors(table, strided.tensors(), 3), expected) << "round " << round;
  }
}

TEST(StateDigest, KnowsPlaceTensorAndBits) {
  const Hash128 key{1, 2};
  const Bytes bits(2, std::byte{7});
  const StateDigest digest = digest_span(key, DType::kBF16, 5, bits);
  EXPECT_NE(digest, digest_span(key, DType::kBF16, 6, bits));
  EXPECT_NE(digest, digest_span({1, 3}, DType::kBF16, 5, bits));
  EXPECT_NE(digest, digest_span({2, 2}, DType::kBF16, 5, bits));
  EXPECT_NE(digest, digest_span(key, DType::kBF16, 5, Bytes(2, std::byte{8})));
}

TEST(StateDigest, WordsAreBijections) {
  std::vector<bool> found(1 << 16);
  for (std::uint32_t u = 0; u < 1 << 16; ++u) {
    const std::uint64_t word = digest_word(static_cast<std::uint16_t>(u));
    ASSERT_LT(word, 1U << 16);
    ASSERT_FALSE(found[word]) << u;
    found[word] = true;
  }
  // A triangular number modulo 2^k tells u modulo 2^k, so that of a wider word is a bijection as well.
  SCOPED_TRACE(seed_note());
  Random random(run_seed());
  for (int i = 0; i < 100'000; ++i) {
    const std::size_t size = std::size_t{1} << random.below(4);
    const std::uint64_t bits = random.next() >> (64 - 8 * size);
    const std::uint64_t other = bits ^ (std::uint64_t{1} << random.below(8 * size));
    ASSERT_NE(word_of(size, bits), word_of(size, other));
    ASSERT_EQ(word_of(size, bits) >> (8 * size - 1) >> 1, 0U);
  }
}

TEST(StateDigest, AStepFromAWrongWordIsAnotherChange) {
  SCOPED_TRACE(seed_note());
  Random random(run_seed());
  int missed = 0;
  for (int i = 0; i < 100'000; ++i) {
    const std::size_t size = std::size_t{1} << random.below(4);
    const std::uint64_t mask = ~std::uint64_t{0} >> (64 - 8 * size);
    const std::uint64_t right = random.next() & mask;
    const bool one_bit = random.chance(0.5);
    const std::uint64_t wrong = (right ^ (one_bit ? std::uint64_t{1} << random.below(8 * size) : random.next())) & mask;
    const std::uint64_t step = random.between(1, 8);
    if (wrong == right || std::max(wrong, right) > mask - step) continue;
    const auto change = [&](std::uint64_t from) { return word_of(size, (from + step) & mask) - word_of(size, from); };
    const bool seen = change(wrong) != change(right);
    ASSERT_TRUE(seen || step % 2 == 0 || size == 8) << right << ' ' << wrong << ' ' << step;
    missed += seen ? 0 : 1;
  }
  EXPECT_LT(missed, 8'000);
}

TEST(StateDigest, AnyChangeOfOneElementIsSeen) {
  SCOPED_TRACE(seed_note());
  Random random(run_seed());
  for (int i = 0; i < 100'000; ++i) {
    const Hash128 key = random_key(random);
    const std::size_t size = std::size_t{1} << random.below(4);
    const std::uint64_t bits = random.next();
    const std::uint64_t flipped = bits ^ (std::uint64_t{1} << random.below(8 * size));
    const std::uint64_t at = random.next();
    DigestSum change;
    with_word(size, [&]<class T>() {
      digest_replace(change, key.lo, key.hi, at, static_cast<T>(bits), static_cast<T>(flipped));
    });
    ASSERT_TRUE(change.lo != 0 || change.hi != 0);
  }
}

TEST(DigestKernels, EveryInstructionSetSumsAsTheElementsDo) {
  SCOPED_TRACE(seed_note());
  std::uint64_t summed = 0;
  for_each_target([&] {
    for (std::uint64_t round = 0; round < 200; ++round) {
      Random random(case_seed(run_seed(), round));
      const std::size_t size = element_size(kByWidth[round % 4]);
      // More than a chunk of the kernels at times; all bits set, so that sums of products come close to their words.
      const std::uint64_t count = round < 8 ? 40'000 + random.below(200) : random.below(300);
      const std::size_t shift = random.below(9);
      Bytes bits = random_bits(random, shift + count * size);
      if (random.chance(0.3)) std::ranges::fill(bits, std::byte{0xFF});
      const Hash128 key = random_key(random);
      const std::uint64_t step = random.chance(0.5) ? 1 : random.next() >> 40;
      const std::uint64_t first = random.next() >> 20;
      DigestSum sum{random.next(), random.next()};
      DigestSum expected = sum;
      const std::uint64_t done = cpu::sum_elements(digest_counter(key.lo, first), step * kDigestStep, key.hi,
                                                   bits.data() + shift, count, size, sum);
      ASSERT_LE(done, count);
      // Without SIMD all elements are left.
      ASSERT_TRUE(done == 0 || done + 256 > count) << "more than the last vector was left";
      summed += done;
      for (std::uint64_t i = 0; i < done; ++i) {
        digest_add(expected, digest_weight(key.lo, key.hi, first + i * step),
                   word_of(size, read_element(bits.data() + shift, size, i)));
      }
      ASSERT_EQ(sum.lo, expected.lo) << "round " << round;
      ASSERT_EQ(sum.hi, expected.hi) << "round " << round;
    }
  });
  EXPECT_GT(summed, 200'000U);
}

TEST(DigestKernels, EveryInstructionSetSumsChangesAsOneByOne) {
  SCOPED_TRACE(seed_note());
  std::uint64_t summed = 0;
  for_each_target([&] {
    for (std::uint64_t round = 0; round < 200; ++round) {
      Random random(case_seed(run_seed(), round));
      const std::size_t size = element_size(kByWidth[round % 4]);
      const auto count = static_cast<std::uint32_t>(random.below(round < 8 ? 2000 : 100));
      Bytes before = random_bits(random, count * size + 8);
      Bytes after = random_bits(random, count * size + 8);
      // Differences as large as they can be.
      if (random.chance(0.3)) std::ranges::fill(before, std::byte{0xFF});
      if (random.chance(0.3)) std::ranges::fill(after, std::byte{0});
      const Hash128 key = random_key(random);
      const std::uint64_t counter = random.next();
      std::vector<std::uint32_t> offsets(count);
      std::vector<std::uint64_t> counters(count);
      for (std::uint32_t i = 0; i < count; ++i) {
        offsets[i] = static_cast<std::uint32_t>(random.next());
        counters[i] = counter + offsets[i] * kDigestStep;
      }
      DigestSum sum{random.next(), random.next()};
      DigestSum expected = sum;
      DigestSum by_offset = sum;
      const std::uint32_t done =
          cpu::sum_changes(counters.data(), key.hi, before.data(), after.data(), count, size, sum);
      ASSERT_EQ(done, cpu::sum_changes_at(counter, offsets.data(), key.hi, before.data(), after.data(), count, size,
                                          by_offset));
      ASSERT_LE(done, std::min(count, cpu::kMostSummedChanges));
      summed += done;
      for (std::uint32_t i = 0; i < done; ++i) {
        digest_change(expected, digest_weight(counters[i], key.hi), word_of(size, read_element(before.data(), size, i)),
                      word_of(size, read_element(after.data(), size, i)));
      }
      for (const DigestSum& found : {sum, by_offset}) {
        ASSERT_EQ(found.lo, expected.lo) << "round " << round;
        ASSERT_EQ(found.hi, expected.hi) << "round " << round;
      }
    }
  });
  EXPECT_GT(summed, 5'000U);
}

/// Errors at places that have to do with one another: element k of the pattern lies `along[k]` strides and `across[k]`
/// pitches from its beginning.
struct ErrorPattern {
  std::vector<std::uint64_t> along;
  std::vector<std::uint64_t> across;
  std::vector<std::int64_t> errors;
};

const ErrorPattern kPatterns[] = {
    {{0, 1}, {0, 0}, {1, -1}},  // Two elements exchanged.
    {{0, 1}, {0, 0}, {1, 1}},   // Two that move alike.
    {{0, 1, 2}, {0, 0, 0}, {1, -2, 1}},
    {{0, 1, 2, 3}, {0, 0, 0, 0}, {1, -3, 3, -1}},
    {{0, 1, 0, 1}, {0, 0, 1, 1}, {1, -1, -1, 1}},  // Two exchanged, in two rows.
};

/// Where the parts of a sum begin. Its lowest bit says nothing, as weights are odd.
constexpr unsigned kParts[] = {1, 14, 27, 40, 51};

/// Returns how often, at most, a part of 13 bits of the sums of weights times errors was all zeros or all ones, among
/// 2^16 sums of one pattern, stride and key: of random numbers 16 times.
template <class Weight>
int most_coincidences(const Weight& weight) {
  Random random(run_seed());
  int most = 0;
  for (const ErrorPattern& pattern : kPatterns) {
    for (const std::uint64_t stride : {1, 2, 3, 64, 1'000, 2'048, 4'096, 16'384, 1 << 20}) {
      for (const std::uint64_t pitch : {std::uint64_t{1'024} * stride, 7 * stride + 1}) {
        const Hash128 key = random_key(random);
        int found[std::size(kParts)] = {};
        for (std::uint64_t i = 0; i < 1 << 16; ++i) {
          std::uint64_t sum = 0;
          for (std::size_t k = 0; k < pattern.errors.size(); ++k) {
            const std::uint64_t at = i + pattern.along[k] * stride + pattern.across[k] * pitch;
            sum += static_cast<std::uint64_t>(pattern.errors[k]) * weight(key, at);
          }
          for (std::size_t p = 0; p < std::size(kParts); ++p) {
            const std::uint64_t part = sum >> kParts[p] & 0x1FFF;
            found[p] += part == 0 || part == 0x1FFF ? 1 : 0;
          }
        }
        most = std::max(most, *std::ranges::max_element(found));
      }
    }
  }
  return most;
}

TEST(DigestWeights, SumsOfErrorsThatGoTogetherAreAsThoseOfRandomNumbers) {
  SCOPED_TRACE(seed_note());
  const auto second = [](const Hash128& key, std::uint64_t i) { return digest_weight(key.lo, key.hi, i); };
  EXPECT_LT(most_coincidences(second), 60);
  // The measure tells a weak mix: the same with two rounds of the three.
  const auto two_rounds = [](const Hash128& key, std::uint64_t i) {
    const std::uint64_t counter = digest_counter(key.lo, i);
    const std::uint64_t x = (counter & 0xFFFFFFFF) * kDigestRound1 ^ counter ^ key.hi;
    return ((x >> 32) * kDigestRound2 ^ x << 32) | 1;
  };
  EXPECT_GT(most_coincidences(two_rounds), 100);
}

TEST(DigestWeights, DependOnEveryBitOfTheKeyAndTheIndex) {
  SCOPED_TRACE(seed_note());
  Random random(run_seed());
  constexpr int kRounds = 1'000;
  for (unsigned bit = 0; bit < 3 * 64; ++bit) {
    int flipped = 0;
    for (int round = 0; round < kRounds; ++round) {
      std::uint64_t words[3] = {random.next(), random.next(), random.next()};
      const std::uint64_t weight = digest_weight(words[0], words[1], words[2]);
      words[bit / 64] ^= std::uint64_t{1} << (bit % 64);
      flipped += std::popcount(weight ^ digest_weight(words[0], words[1], words[2]));
    }
    EXPECT_GT(flipped, 12 * kRounds) << "bits of the weight with bit " << bit % 64 << " of word " << bit / 64;
  }
}

}  // namespace
}  // namespace sparsecast::test
