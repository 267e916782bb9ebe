// SPDX-License-Identifier: Apache-2.0

// Cast snapshots: masters beside tensors as they are, against the snapshot of tensors that were cast beforehand.

#include <gtest/gtest.h>

#include "sparsecast/detector.hpp"
#include "sparsecast/publisher.hpp"
#include "support/detectors.hpp"
#include "support/expect_error.hpp"
#include "support/masters.hpp"
#include "support/strided_state.hpp"

namespace sparsecast::test {
namespace {

/// Mostly bf16, so that there are masters.
std::shared_ptr<const TensorTable> random_bf16_table(Random& random) {
  std::vector<TensorSpec> specs = random_specs(random);
  for (TensorSpec& spec : specs) {
    if (random.chance(0.7)) spec.dtype = DType::kBF16;
  }
  return std::make_shared<const TensorTable>(std::move(specs));
}

TEST(CastSnapshot, FindsWhatASnapshotFindsOfTensorsThatWereCastBeforehand) {
  SCOPED_TRACE(seed_note());
  const auto workspace = std::make_unique<TileWorkspace>();
  const auto expected = std::make_unique<TileWorkspace>();
  for (std::uint64_t n = 0; n < 200 && !HasFailure(); ++n) {
    SCOPED_TRACE("case " + std::to_string(n));
    Random random(case_seed(run_seed(), n));
    const auto table = random_bf16_table(random);
    const TensorTable held = with_masters(random, *table, 0.7);
    TensorState state = random_state(random, held);
    TensorState before = cast_slowly(*table, held, state);
    train_masters(random, *table, held, state);
    const TensorState after = cast_slowly(*table, held, state);
    const auto plain = make_compare_detector(*table, views(after), views(before));
    const StridedState live(random, held, state);
    const StridedState snapshot(random, *table, before);
    const auto cast = host_snapshot_over(*table, live.tensors(), snapshot.tensors());
    ASSERT_EQ(cast->part(), plain->part());
    EXPECT_TRUE(cast->knows_old());
    EXPECT_FALSE(cast->consumes_changes());
    ASSERT_EQ(cast->snapshot().size(), table->size());
    for (std::size_t t = 0; t < table->size(); ++t) {
      for (std::uint64_t first = 0; first < (*table)[t].elements(); first += plain->part()) {
        const auto count =
            static_cast<std::uint32_t>(std::min<std::uint64_t>(plain->part(), (*table)[t].elements() - first));
        const std::uint32_t found = cast->detect(t, first, count, *workspace).changed;
        ASSERT_EQ(found, plain->detect(t, first, count, *expected).changed);
        ASSERT_TRUE(std::equal(workspace->positions, workspace->positions + found, expected->positions));
      }
    }
    EXPECT_TRUE(live.holds(state) && snapshot.holds(before)) << "detection alone has written something";
  }
}

class CastSnapshotPublisher : public testing::TestWithParam<ValueCodec> {};
INSTANTIATE_TEST_SUITE_P(Values, CastSnapshotPublisher,
                         testing::Values(ValueCodec::kRaw, ValueCodec::kXor, ValueCodec::kUlp),
                         [](const auto& codec) { return std::string(to_string(codec.param)); });

TEST_P(CastSnapshotPublisher, MakesTheFramesOfTensorsThatWereCastBeforehandWhateverBecomesOfThem) {
  SCOPED_TRACE(seed_note());
  for (std::uint64_t n = 0; n < 60 && !HasFailure(); ++n) {
    SCOPED_TRACE("case " + std::to_string(n));
    Random random(case_seed(run_seed(), n));
    const auto table = random_bf16_table(random);
    const TensorTable held = with_masters(random, *table, 0.8);
    TensorState state = random_state(random, held);
    TensorState weights = cast_slowly(*table, held, state);
    TensorState base = weights;
    PublisherOptions options;
    options.encode = random_options(random);
    options.encode.values = GetParam();
    options.encode.threads = n % 2 == 0 ? 1 : 3;
    Publisher plain(table, host_snapshot(*table, views(weights)), options);
    StridedState live(random, held, state);
    const StridedState snapshot(random, *table, base);
    Publisher cast(table, host_snapshot_over(*table, live.tensors(), snapshot.tensors()), options);
    ASSERT_EQ(cast.digest(), plain.digest());
    for (std::uint64_t version = 1; version <= 4; ++version) {
      train_masters(random, *table, held, state);
      live.write(state);
      const TensorState now = cast_slowly(*table, held, state);
      for (std::size_t t = 0; t < table->size(); ++t) std::ranges::copy(now[t], weights[t].begin());
      const Delta& expected = plain.publish();
      const Delta& found = cast.publish();
      ASSERT_EQ(found.header, expected.header);
      ASSERT_TRUE(found.frames == expected.frames);
      ASSERT_EQ(found.commit, expected.commit);
      ASSERT_TRUE(live.holds(state)) << "the masters are only read";
      const bool committed = random.chance(0.6);
      for (Publisher* const publisher : {&plain, &cast})
        committed ? publisher->commit(version) : publisher->abort(version);
      if (committed) base = now;
      ASSERT_TRUE(snapshot.holds(base)) << "version " << version << (committed ? " committed" : " aborted");
      ASSERT_EQ(cast.digest(), plain.digest());
    }
  }
}

TEST(CastSnapshot, WhatIsNeitherTheTensorNorItsMasterIsRefusedByName) {
  const TensorTable table({{"norm", DType::kF32, {3}}, {"weight", DType::kBF16, {2, 2}}});
  Bytes memory(64);
  const auto source = [&](std::size_t t, DType dtype) {
    TensorRef ref = ref_to(table[t], memory.data());
    ref.dtype = dtype;
    return ref;
  };
  const std::vector<TensorRef> held{ref_to(table[0], memory.data()), ref_to(table[1], memory.data())};
  const auto make = [&](DType norm, DType weight) {
    static_cast<void>(host_snapshot_over(table, {source(0, norm), source(1, weight)}, held));
  };
  make(DType::kF32, DType::kF32);
  make(DType::kF32, DType::kBF16);
  expect_error(ErrorCode::kUsage, [&] { make(DType::kBF16, DType::kF32); }, {"BF16 given for F32", "'norm'"});
  expect_error(ErrorCode::kUsage, [&] { make(DType::kF32, DType::kF16); }, {"F16 given for BF16", "'weight'"});
  expect_error(ErrorCode::kUsage, [&] { static_cast<void>(host_snapshot_over(table, {source(0, DType::kF32)}, held)); },
               {"1 live tensors for a table of 2"});
  expect_error(ErrorCode::kUsage,
               [&] {
                 static_cast<void>(host_snapshot_over(table, {source(0, DType::kF32), source(1, DType::kF32)},
                                                      {held[0], ref_to(table[1], memory.data(), kHostMemory, {0, 1})}));
               },
               {"snapshot", "overlap", "'weight'"});
}

}  // namespace
}  // namespace sparsecast::test
