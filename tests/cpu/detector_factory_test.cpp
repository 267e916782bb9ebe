// SPDX-License-Identifier: Apache-2.0

// make_detector() over host memory: what each way of detection takes, and what it refuses by name.

#include <gtest/gtest.h>

#include "core/word.hpp"
#include "memory/memory_backend.hpp"
#include "sparsecast/publisher.hpp"
#include "sparsecast/subscriber.hpp"
#include "support/expect_error.hpp"
#include "support/masters.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"
#include "support/strided_state.hpp"

namespace sparsecast::test {
namespace {

using Table = std::shared_ptr<const TensorTable>;

Table small_table() {
  return std::make_shared<const TensorTable>(
      std::vector<TensorSpec>{{"weight", DType::kBF16, {4, 6}}, {"norm", DType::kF32, {5}}});
}

DetectorOptions by(Detection method) {
  DetectorOptions options;
  options.by = method;
  return options;
}

TEST(DetectorFactory, ASnapshotOfItsOwnHoldsTheCastOfMastersAndTheElementsOfViews) {
  SCOPED_TRACE(seed_note());
  for (std::uint64_t n = 0; n < 60 && !HasFailure(); ++n) {
    Random random(case_seed(run_seed(), n));
    const auto table = std::make_shared<const TensorTable>(random_specs(random));
    const TensorTable held = with_masters(random, *table, 0.7);
    TensorState state = random_state(random, held);
    const TensorState wire = cast_slowly(*table, held, state);
    StridedState live(random, held, state);
    Publisher publisher(table, make_detector(table, live.tensors()), {});
    EXPECT_EQ(publisher.digest(), sum(digest_tensors(*table, refs_to(*table, views(wire)))));
    EXPECT_EQ(publisher.publish().result.changed, 0U);
    publisher.commit(1);

    train_masters(random, *table, held, state);
    live.write(state);
    TensorState engine = wire;
    SubscriberOptions options;
    options.version = 1;
    Subscriber subscriber(table, refs_to(*table, live_views(engine)), options);
    subscriber.stage(publisher.publish());
    subscriber.apply();
    EXPECT_EQ(engine, cast_slowly(*table, held, state)) << "case " << n;
  }
}

TEST(DetectorFactory, RefusesByNameWhatCannotBe) {
  const Table table = small_table();
  Bytes weight(4 * 6 * 2);
  Bytes norm(5 * 4);
  Bytes masters(4 * 6 * 4);
  Bytes snapshot(64);
  const std::vector<TensorRef> live{ref_to((*table)[0], weight.data()), ref_to((*table)[1], norm.data())};
  const auto refused = [&](ErrorCode code, std::vector<TensorRef> tensors, DetectorOptions options,
                           std::initializer_list<std::string_view> words) {
    expect_error(
        code, [&] { make_detector(table, std::move(tensors), std::move(options)); }, words);
  };
  refused(ErrorCode::kUsage, {live[0]}, {}, {"1 live tensors", "table of 2"});
  refused(ErrorCode::kUsage, {live[0], live[1], live[1]}, {}, {"3 live tensors", "table of 2"});
  std::vector<TensorRef> other = live;
  other[1].shape = {6};
  refused(ErrorCode::kUsage, other, {}, {"'norm'", "shape [6]", "[5]"});
  other = live;
  other[1].dtype = DType::kBF16;
  refused(ErrorCode::kUsage, other, {}, {"'norm'", "BF16 given for F32"});
  other = live;
  other[1].device = 2;
  refused(ErrorCode::kUsage, other, {}, {"'norm'", "device 2", "'weight'", "the host"});

  DetectorOptions options;
  options.pinned = true;
  refused(ErrorCode::kUsage, live, options, {"pinned", "device"});
  options = {};
  options.held = {ref_to((*table)[0], snapshot.data(), 1), ref_to((*table)[1], norm.data(), 1)};
  refused(ErrorCode::kUsage, live, options, {"what receivers hold", "device"});

  const std::vector<TensorRef> transposed{ref_to((*table)[0], weight.data(), kHostMemory, {1, 4}), live[1]};
  refused(ErrorCode::kUnsupported, transposed, by(Detection::kMask), {"mask", "views", "'weight'"});
  options = by(Detection::kMask);
  options.held = live;
  refused(ErrorCode::kUsage, live, options, {"mask", "snapshot"});

  TensorRef master = ref_to((*table)[0], masters.data());
  master.dtype = DType::kF32;
  const TensorRef none = ref_to((*table)[1], nullptr);
  options = by(Detection::kFusedCast);
  refused(ErrorCode::kUsage, {master, none}, options, {"0 bf16 tensors", "table of 2"});
  options.held = live;
  make_detector(table, {master, none}, options);
  refused(ErrorCode::kUsage, {live[0], none}, options, {"'weight'", "master", "fp32"});
  refused(ErrorCode::kUsage, {master, live[1]}, options, {"'norm'", "only bf16"});
  TensorRef columns = master;
  columns.strides = {1, 4};
  refused(ErrorCode::kUnsupported, {columns, none}, options, {"views", "'weight'"});
}

TEST(DetectorFactory, OnlyAMaskTakesMarks) {
  const Table table = small_table();
  Bytes weight(4 * 6 * 2);
  Bytes norm(5 * 4);
  const std::vector<TensorRef> live{ref_to((*table)[0], weight.data()), ref_to((*table)[1], norm.data())};
  const std::uint64_t words[] = {0b101};
  expect_error(ErrorCode::kUsage, [&] { make_detector(table, live)->mark(0, words); }, {"mask"});
  auto mask = make_detector(table, live, by(Detection::kMask));
  expect_error(ErrorCode::kUsage, [&] { mask->mark(2, words); }, {"tensor 2 of a table of 2"});
  expect_error(ErrorCode::kUsage, [&] { mask->mark(0, nullptr); }, {"'weight'", "null"});
  const std::uint64_t beyond[] = {std::uint64_t{1} << 24};
  expect_error(ErrorCode::kUsage, [&] { mask->mark(0, beyond); }, {"'weight'", "beyond"});
  mask->mark(0, words);
  PublisherOptions options;
  options.encode.values = ValueCodec::kRaw;
  Publisher publisher(table, std::move(mask), options);
  EXPECT_EQ(publisher.publish().result.changed, 2U);
  publisher.abort(1);
  publisher.detector().mark(1, words);
  EXPECT_EQ(publisher.publish().result.changed, 4U);
}

}  // namespace
}  // namespace sparsecast::test
