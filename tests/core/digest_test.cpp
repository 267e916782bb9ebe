// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/digest.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/digest_common.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"
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
    for (std::uint64_t i = random.below(200); i > 0; --i) {
      const std::uint64_t at = random.below(count);
      const std::uint64_t old_bits = read_element(bits.data(), size, at);
      write_element(bits.data(), size, at, random.next());
      digest_replace(change, key.lo, key.hi, first + at, old_bits, read_element(bits.data(), size, at));
    }
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
    digest_replace(change, a.value.lo, a.value.hi, index, bits, other);
    digest_replace(change, a.value.lo, a.value.hi, index, other, bits);
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
      digest_add(slow, digest_multiplier(key.lo, i),
                 digest_multiplicand(key.hi, read_element(state[t].data(), size, i)));
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

}  // namespace
}  // namespace sparsecast::test
