// SPDX-License-Identifier: Apache-2.0

// Cast snapshots on a device, emulated or real: masters beside tensors as they are, views or not. Frames are the CPU's
// of tensors that were cast beforehand, without the library's arithmetic.

#include <gtest/gtest.h>

#include "cuda/viewed_tensors.hpp"
#include "sparsecast/publisher.hpp"
#include "sparsecast/subscriber.hpp"
#include "support/detectors.hpp"
#include "support/expect_error.hpp"
#include "support/masters.hpp"

namespace sparsecast::test {
namespace {

/// A table of boxes, mostly of bf16, and its trainer's state, in which most of those are masters.
struct MasterBoxes {
  explicit MasterBoxes(Random& random) {
    const BoxedDelta boxes = random_boxes(random, true);
    std::vector<TensorSpec> specs(boxes.plain->begin(), boxes.plain->end());
    std::vector<DigestOrigin> origins;
    for (std::size_t t = 0; t < specs.size(); ++t) {
      if (random.chance(0.6)) specs[t].dtype = DType::kBF16;
      origins.push_back(boxes.delta.table->digest_origin(t));
    }
    table = random.chance(0.6) ? std::make_shared<const TensorTable>(specs, origins)
                               : std::make_shared<const TensorTable>(specs);
    held = with_masters(random, *table, 0.75);
    state = random_state(random, held);
    options = boxes.delta.options;
  }
  void train(Random& random) { train_masters(random, *table, held, state); }
  TensorState wire() const { return cast_slowly(*table, held, state); }
  bool is_master(std::size_t t) const { return held[t].dtype != (*table)[t].dtype; }

  std::shared_ptr<const TensorTable> table;
  TensorTable held;
  TensorState state;
  EncodeOptions options;
};

class DeviceCastSnapshot : public DeviceCases {
 protected:
  DeviceCastSnapshot() : DeviceCases(0.6) {}
};
INSTANTIATE_TEST_SUITE_P(Random, DeviceCastSnapshot, testing::Range(0, 6));

TEST_P(DeviceCastSnapshot, EncodesTheFramesOfTensorsThatWereCastBeforehand) {
  for_cases(16, [](Random& random) {
    MasterBoxes boxes(random);
    const TensorState before = boxes.wire();
    boxes.train(random);
    const TensorState after = boxes.wire();
    const auto detector = make_compare_detector(*boxes.table, views(after), views(before));
    const ExpectedFrames expected = encode_on_cpu(*boxes.table, *detector, boxes.options);

    const bool with_views = random.chance(0.7);
    const ViewedTensors current(boxes.held, boxes.state, random, with_views);
    const ViewedTensors snapshot(*boxes.table, before, random, with_views);
    std::vector<cuda::CompareTensor> tensors;
    for (std::size_t t = 0; t < boxes.table->size(); ++t) {
      const TensorRef& live = current.tensors()[t];
      const TensorRef& old = snapshot.tensors()[t];
      tensors.push_back({live.data, old.data, live.strides, old.strides, boxes.is_master(t)});
    }
    cuda::DeviceEncoderOptions memory;
    if (random.chance(0.5)) memory.chunk_bytes = random.between(1, 300'000);
    const bool refresh = random.chance(0.7);
    auto encoder = cuda::DeviceEncoder::compare(*boxes.table, tensors, refresh, boxes.options, memory);
    encoder.start(nullptr);
    expect_same_frames(encoder.finish(test_header(*boxes.table, boxes.options)), expected);
    current.expect_holds(boxes.state, "live tensor");
    snapshot.expect_holds(refresh ? after : before, "snapshot");
  });
}

TEST_P(DeviceCastSnapshot, PublishesWhatTheCpuDoesWhateverBecomesOfTheDeltas) {
  for_cases(8, [](Random& random) {
    MasterBoxes boxes(random);
    const auto& table = boxes.table;
    TensorState base = boxes.wire();
    ViewedTensors live(boxes.held, boxes.state, random);
    const ViewedTensors snapshot(*table, base, random);
    TensorState host_live = boxes.state;
    TensorState host_snapshot = base;
    DeviceOptions device;
    if (random.chance(0.5)) device.chunk_bytes = random.between(1, 200'000);
    PublisherOptions options;
    options.encode = boxes.options;
    Publisher publisher(table, device_snapshot_over(table, live.tensors(), snapshot.tensors(), device), options);
    Publisher on_host(table,
                      host_snapshot_over(*table, refs_to(boxes.held, live_views(host_live)),
                                         refs_to(*table, live_views(host_snapshot))),
                      options);
    EXPECT_EQ(publisher.digest(), digest_by_element(*table, base));
    for (std::uint64_t version = 1; version <= 4; ++version) {
      SCOPED_TRACE(testing::Message() << "version " << version << ", values "
                                      << static_cast<int>(options.encode.values));
      boxes.train(random);
      live.write(boxes.state);
      for (std::size_t t = 0; t < table->size(); ++t) std::ranges::copy(boxes.state[t], host_live[t].begin());
      const TensorState now = boxes.wire();
      const Delta& delta = publisher.publish();
      const Delta& expected = on_host.publish();
      EXPECT_EQ(delta.header, expected.header);
      EXPECT_EQ(delta.frames, expected.frames);
      EXPECT_EQ(delta.commit, expected.commit);
      EXPECT_EQ(delta.result.result_digest, digest_by_element(*table, now));
      const bool committed = random.chance(0.6);
      for (Publisher* const one : {&publisher, &on_host}) committed ? one->commit(version) : one->abort(version);
      if (committed) base = now;
      snapshot.expect_holds(base, "snapshot");
      live.expect_holds(boxes.state, "live tensor");
      EXPECT_EQ(publisher.digest(), digest_by_element(*table, base));
    }
  });
}

TEST_P(DeviceCastSnapshot, OfItsOwnOnTheDeviceOrInPinnedMemoryIsTheHosts) {
  for_cases(8, [](Random& random) {
    MasterBoxes boxes(random);
    const auto& table = boxes.table;
    ViewedTensors live(boxes.held, boxes.state, random, false);
    TensorState host_live = boxes.state;
    DetectorOptions detecting;
    detecting.pinned = random.chance(0.5);
    if (random.chance(0.5)) detecting.device.chunk_bytes = random.between(1, 200'000);
    PublisherOptions options;
    options.encode = boxes.options;
    Publisher publisher(table, make_detector(table, live.tensors(), detecting), options);
    Publisher on_host(table, make_host_detector(table, refs_to(boxes.held, live_views(host_live))), options);
    EXPECT_EQ(publisher.digest(), on_host.digest());
    for (std::uint64_t version = 1; version <= 3; ++version) {
      boxes.train(random);
      live.write(boxes.state);
      for (std::size_t t = 0; t < table->size(); ++t) std::ranges::copy(boxes.state[t], host_live[t].begin());
      EXPECT_EQ(publisher.publish().frames, on_host.publish().frames) << "version " << version;
      const bool committed = random.chance(0.6);
      for (Publisher* const one : {&publisher, &on_host}) committed ? one->commit(version) : one->abort(version);
      EXPECT_EQ(publisher.digest(), on_host.digest());
    }
  });
}

TEST(DeviceCastSnapshotErrors, AreTypedAndNameTheTensor) {
  if (!device_present()) GTEST_SKIP() << "no device";
  const auto table = std::make_shared<const TensorTable>(
      std::vector<TensorSpec>{{"norm", DType::kF32, {8}}, {"weight", DType::kBF16, {8}}});
  const SharedBytes memory(allocate_shared(64));
  const SharedBytes copy(allocate_shared(64));
  std::byte* const at = memory.get();
  const auto ref = [&](std::size_t t, std::byte* data, DType dtype) {
    TensorRef of = ref_to((*table)[t], data, 0);
    of.dtype = dtype;
    return of;
  };
  const std::vector<TensorRef> held = device_refs(*table, {copy.get(), copy.get()});
  const auto make = [&](const TensorRef& norm, const TensorRef& weight) {
    static_cast<void>(device_snapshot_over(table, {norm, weight}, held));
  };
  const TensorRef norm = ref(0, at, DType::kF32);
  make(norm, ref(1, at, DType::kF32));
  make(norm, ref(1, at + 2, DType::kBF16));
  const auto refused = [&](const TensorRef& first, const TensorRef& second,
                           std::initializer_list<std::string_view> words) {
    expect_error(
        ErrorCode::kUsage, [&] { make(first, second); }, words);
  };
  refused(norm, ref(1, at + 2, DType::kF32), {"'weight'", "live", "aligned"});
  refused(norm, ref(1, nullptr, DType::kF32), {"'weight'", "live", "null"});
  refused(norm, ref(1, at, DType::kF16), {"'weight'", "F16 given for BF16"});
  refused(ref(0, at, DType::kBF16), ref(1, at, DType::kBF16), {"'norm'", "BF16 given for F32"});
  refused(norm, ref(1, copy.get(), DType::kF32), {"'weight'", "itself"});
  expect_error(ErrorCode::kUsage, [&] { static_cast<void>(device_snapshot_over(table, {norm}, held)); },
               {"1 live tensors", "table of 2"});
}

}  // namespace
}  // namespace sparsecast::test
