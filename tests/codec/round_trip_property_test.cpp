// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "support/huge_tensor.hpp"
#include "support/round_trip.hpp"

namespace sparsecast::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSlow = true;
#else
constexpr bool kSlow = false;
#endif
constexpr int kSmallDeltas = kSlow ? 3'000 : 30'000;
constexpr int kLargeDeltas = kSlow ? 20 : 200;

void round_trip_many(int count, const RandomLimits& limits, const RoundTripDepth& depth) {
  SCOPED_TRACE(seed_note());
  for (int i = 0; i < count; ++i) {
    Random random(case_seed(run_seed(), static_cast<std::uint64_t>(i)));
    RandomDelta delta = random_delta(random, limits);
    try {
      check_round_trip(std::move(delta), random, depth);
    } catch (const std::exception& error) {
      FAIL() << "case " << i << ": " << error.what();
    }
  }
}

TEST(RoundTripProperty, RandomSmallDeltasArriveBitForBit) { round_trip_many(kSmallDeltas, {4, 2'000, 0.01, true}, {}); }

TEST(RoundTripProperty, SmallDeltasAreTheReferenceEncodersByteForByte) {
  round_trip_many(kSmallDeltas / 10, {4, 2'000, 0.01, true}, {.against_reference = true});
}

TEST(RoundTripProperty, SmallDeltasCanBeRolledBack) {
  round_trip_many(kSmallDeltas / 10, {4, 2'000, 0.01, true}, {.through_file = true, .rolled_back = true});
}

TEST(RoundTripProperty, DeltasOfManyTilesAreTheReferenceEncodersByteForByte) {
  round_trip_many(kLargeDeltas, {2, 300'000, 0.7, true}, {true, true, true});
}

TEST(RoundTripProperty, DeltasOfSeveralSectionsAndFramesAreTheReferenceEncodersByteForByte) {
  Random random(run_seed());
  SCOPED_TRACE(seed_note());
  for (const ValueCodec values : {ValueCodec::kRaw, ValueCodec::kXor, ValueCodec::kUlp}) {
    RandomDelta delta;
    delta.table = std::make_shared<const TensorTable>(
        std::vector<TensorSpec>{{"wide", DType::kBF16, {2 * kSectionElems + 77}}, {"narrow", DType::kI8, {900'000}}});
    delta.old_state = random_state(random, *delta.table);
    delta.new_state = delta.old_state;
    std::byte* wide = delta.new_state[0].data();
    for (std::uint64_t i = 0; i < delta.new_state[0].size() / 2; i += 1 + random.below(60)) {
      write_element(wide, 2, i, read_element(wide, 2, i) + 1);
    }
    for (std::byte& bits : delta.new_state[1]) bits = static_cast<std::byte>(random.next());
    delta.options.values = values;
    delta.options.frame_capacity = kMinFrameCapacity;
    delta.options.threads = 2;
    EXPECT_NO_THROW(check_round_trip(std::move(delta), random, {true, true, true})) << to_string(values);
  }
}

TEST(RoundTripProperty, ATensorOfMoreThan2To32ElementsArrivesBitForBit) {
  if (kSlow) GTEST_SKIP() << "too much memory for a sanitizer's shadow; round_trip_soak --huge covers it";
  EXPECT_NO_THROW(check_huge_tensor(PositionMode::kAuto, ValueCodec::kUlp, 2));
}

}  // namespace
}  // namespace sparsecast::test
