// SPDX-License-Identifier: Apache-2.0

// Publishers on a device, emulated or real, against those of the CPU: the same bytes, version after version.

#include "sparsecast/publisher.hpp"

#include <gtest/gtest.h>

#include <bit>

#include "cuda/differential.hpp"
#include "sparsecast/subscriber.hpp"
#include "support/detectors.hpp"
#include "support/expect_error.hpp"

namespace sparsecast::test {
namespace {

enum class Kind { kSnapshot, kPinned, kCast, kMask };

/// One trainer's weights twice, with a publisher over each.
class Twins {
 public:
  Twins(Kind kind, const RandomDelta& delta, Random& random, const DeviceOptions& device)
      : kind_(kind),
        table_(*delta.table),
        state_(delta.old_state),
        host_(delta.old_state),
        live_(element_sizes(table_), state_, random.chance(0.5) ? 0 : random.between(1, 9)) {
    PublisherOptions options;
    options.encode = delta.options;
    if (kind == Kind::kMask) options.encode.values = ValueCodec::kRaw;
    host_publisher_.emplace(delta.table, host_detector(), options);
    device_publisher_.emplace(delta.table, device_detector(delta.table, device), options);
    EXPECT_EQ(host_publisher_->digest(), device_publisher_->digest());
  }

  /// One more step of training.
  void train(Random& random) {
    const TensorState before = state_;
    change_randomly(random, table_, state_);
    for (std::size_t t = 0; t < table_.size(); ++t) {
      if (kind_ == Kind::kCast) {
        if (table_[t].dtype == DType::kBF16)
          cast_to(t);
        else
          state_[t] = before[t];
      } else if (!state_[t].empty()) {
        std::memcpy(host_[t].data(), state_[t].data(), state_[t].size());
        std::memcpy(live_[t], state_[t].data(), state_[t].size());
      }
      if (kind_ == Kind::kMask) mark(t, before[t]);
    }
  }

  /// Publishes both, and compares.
  void publish(bool stay_on_device) {
    const Delta& expected = host_publisher_->publish();
    std::vector<Bytes> frames;
    Bytes header;
    Bytes commit;
    if (stay_on_device) {
      const DeviceDelta& found = device_publisher_->publish_on_device();
      for (const DeviceRecord& frame : found.frames) {
        frames.push_back(read_device(frame.d_record, frame.record_bytes, found.cuda_stream));
      }
      header = found.header;
      commit = found.commit;
      EXPECT_EQ(found.wire_bytes(), expected.wire_bytes());
    } else {
      const Delta& found = device_publisher_->publish();
      frames = found.frames;
      header = found.header;
      commit = found.commit;
    }
    version_ = expected.info.version;
    ASSERT_EQ(header, expected.header);
    ASSERT_EQ(frames, expected.frames);
    ASSERT_EQ(commit, expected.commit);
  }
  void commit() {
    host_publisher_->commit(version_);
    device_publisher_->commit(version_);
    EXPECT_EQ(host_publisher_->digest(), device_publisher_->digest());
  }
  void abort() {
    host_publisher_->abort(version_);
    device_publisher_->abort(version_);
    EXPECT_EQ(host_publisher_->digest(), device_publisher_->digest());
  }
  Publisher& device_publisher() { return *device_publisher_; }

 private:
  std::unique_ptr<Detector> host_detector() {
    if (kind_ == Kind::kMask) {
      auto mask = host_mask(table_, views(host_));
      host_mask_ = mask.get();
      return mask;
    }
    if (kind_ != Kind::kCast) return host_snapshot(table_, views(host_));
    masters_.resize(table_.size());
    for (std::size_t t = 0; t < table_.size(); ++t) {
      if (table_[t].dtype == DType::kBF16) masters_[t].resize(table_[t].elements());
    }
    return host_fused_cast(table_, {masters_.begin(), masters_.end()}, live_views(host_));
  }

  std::unique_ptr<Detector> device_detector(const std::shared_ptr<const TensorTable>& table,
                                            const DeviceOptions& device) {
    std::vector<const void*> current;
    for (std::size_t t = 0; t < table_.size(); ++t) current.push_back(live_[t]);
    if (kind_ == Kind::kSnapshot) return device_snapshot(table, current, device);
    if (kind_ == Kind::kPinned) return pinned_snapshot(table, current, device);
    if (kind_ == Kind::kMask) {
      auto mask = device_mask(table, current, device);
      device_mask_ = mask.get();
      return mask;
    }
    std::vector<const float*> masters;
    std::vector<void*> bf16;
    for (std::size_t t = 0; t < table_.size(); ++t) {
      device_masters_.emplace_back(allocate_shared(4 * masters_[t].size()));
      const bool cast = table_[t].dtype == DType::kBF16;
      masters.push_back(cast ? reinterpret_cast<const float*>(device_masters_[t].get()) : nullptr);
      bf16.push_back(live_[t]);
      if (cast) cast_to(t);
    }
    return device_fused_cast(table, masters, bf16, device);
  }

  /// Masters whose cast is near the state.
  void cast_to(std::size_t t) {
    for (std::uint64_t i = 0; i < masters_[t].size(); ++i) {
      const auto bits = static_cast<std::uint32_t>(read_element(state_[t].data(), 2, i));
      masters_[t][i] = std::bit_cast<float>(bits << 16 | 0x123);
    }
    if (!masters_[t].empty()) std::memcpy(device_masters_[t].get(), masters_[t].data(), 4 * masters_[t].size());
  }

  void mark(std::size_t t, const Bytes& before) {
    const std::size_t size = element_size(table_[t].dtype);
    std::vector<std::uint64_t> words((table_[t].elements() + 63) / 64);
    for (std::uint64_t i = 0; i < table_[t].elements(); ++i) {
      const bool changed = read_element(before.data(), size, i) != read_element(state_[t].data(), size, i);
      words[i / 64] |= std::uint64_t{changed} << (i % 64);
    }
    host_mask_->mark(t, words.data());
    mask_words_.emplace_back(allocate_shared(8 * words.size()));
    if (!words.empty()) std::memcpy(mask_words_.back().get(), words.data(), 8 * words.size());
    device_mask_->mark(t, reinterpret_cast<const std::uint64_t*>(mask_words_.back().get()), nullptr);
  }

  Kind kind_;
  const TensorTable& table_;
  TensorState state_;
  TensorState host_;
  DeviceState live_;
  std::vector<std::vector<float>> masters_;
  std::vector<SharedBytes> device_masters_;
  std::vector<SharedBytes> mask_words_;
  Detector* host_mask_ = nullptr;
  Detector* device_mask_ = nullptr;
  std::optional<Publisher> host_publisher_;
  std::optional<Publisher> device_publisher_;
  std::uint64_t version_ = 0;
};

class DevicePublisherTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!device_present()) GTEST_SKIP() << "no device";
  }
  ~DevicePublisherTest() override { set_thread_order(0); }
};
INSTANTIATE_TEST_SUITE_P(Random, DevicePublisherTest, testing::Range(0, 8));

TEST_P(DevicePublisherTest, PublishesWhatTheCpuDoesWhateverBecomesOfTheDeltas) {
  for (int i = 0; i < 8 && !HasFailure(); ++i) {
    const int number = GetParam() * 8 + i;
    SCOPED_TRACE(seed_note() + ", case " + std::to_string(number));
    Random random(case_seed(run_seed(), static_cast<std::uint64_t>(number)));
    set_thread_order(random.chance(0.5) ? random.next() : 0);
    RandomDelta delta = random_delta(random, {.max_elements = 60'000, .large_chance = 0.3});
    delta.options.zstd_level = 0;
    DeviceOptions device;
    // Down to one section a chunk, so that a snapshot comes in several.
    if (random.chance(0.7)) device.chunk_bytes = random.between(1, 200'000);
    const auto kind = static_cast<Kind>(number % 4);
    SCOPED_TRACE(testing::Message() << "kind " << number % 4 << ", values " << static_cast<int>(delta.options.values));
    Twins twins(kind, delta, random, device);
    for (int step = 0; step < 4; ++step) {
      if (random.chance(0.9)) twins.train(random);
      twins.publish(random.chance(0.5));
      if (HasFatalFailure()) return;
      random.chance(0.5) ? twins.commit() : twins.abort();
    }
  }
}

TEST(DevicePublisherShapes, ATensorOfSeveralSectionsIsPrefetchedInSeveralChunks) {
  if (!device_present()) GTEST_SKIP() << "no device";
  Random random(11);
  RandomDelta delta;
  const std::vector<TensorSpec> specs = {{"small", DType::kBF16, {100}},
                                         {"empty", DType::kF32, {0}},
                                         {"long", DType::kU8, {2 * kSectionElems + 77}},
                                         {"last", DType::kBF16, {3000}}};
  delta.table = std::make_shared<const TensorTable>(specs);
  for (const TensorSpec& spec : specs) delta.old_state.emplace_back(spec.bytes());
  Twins twins(Kind::kPinned, delta, random, {.chunk_bytes = 1});
  for (int step = 0; step < 2; ++step) {
    twins.train(random);
    twins.publish(false);
    if (testing::Test::HasFatalFailure()) return;
    step == 0 ? twins.abort() : twins.commit();
  }
}

struct Small {
  explicit Small(std::uint64_t elements = 30'000)
      : table(std::make_shared<const TensorTable>(std::vector<TensorSpec>{{"t", DType::kBF16, {elements}}})),
        live({2}, {Bytes(2 * elements)}, 0) {}
  void train(Random& random) {
    for (std::uint64_t i = 0; i < (*table)[0].elements(); ++i) {
      if (random.chance(0.01)) live[0][2 * i] ^= std::byte{1};
    }
  }
  std::shared_ptr<const TensorTable> table;
  DeviceState live;
};

TEST(DevicePublisherErrors, AreTypedAndNameWhatIsWrong) {
  if (!device_present()) GTEST_SKIP() << "no device";
  Small small;
  const auto detector = [&] { return device_snapshot(small.table, {small.live[0]}); };
  PublisherOptions options;
  options.encode.zstd_level = 3;
  expect_error(ErrorCode::kUnsupported, [&] { Publisher publisher(small.table, detector(), options); }, {"zstd"});
  options.encode.zstd_level = 0;
  options.encode.frame_capacity = 1;
  expect_error(ErrorCode::kUsage, [&] { Publisher publisher(small.table, detector(), options); }, {"capacity"});
  options = {};
  expect_error(ErrorCode::kUsage,
               [&] {
                 Publisher publisher(small.table, device_mask(small.table, std::vector<const void*>{small.live[0]}),
                                     options);
               },
               {"raw"});
  expect_error(ErrorCode::kUsage, [&] { make_detector(small.table, {}); }, {"table of 1"});
  expect_error(ErrorCode::kUsage, [&] { detector()->mark(0, nullptr); }, {"mask"});
  expect_error(ErrorCode::kUsage, [&] { pinned_snapshot(small.table, {nullptr}); }, {"'t'", "null"});
  expect_error(ErrorCode::kUsage, [&] { device_snapshot(small.table, {small.live[0]}, {.device = 77}); }, {"77"});
  const Small other(20);
  expect_error(ErrorCode::kTableMismatch, [&] { Publisher publisher(other.table, detector(), options); });

  Publisher publisher(small.table, detector(), options);
  EXPECT_EQ(dynamic_cast<TileDetector*>(&publisher.detector()), nullptr);
  publisher.publish();
  expect_error(ErrorCode::kUsage, [&] { publisher.publish_on_device(); }, {"pending"});
  expect_error(ErrorCode::kUsage, [&] { publisher.commit(7); }, {"cannot commit version 7"});
  publisher.commit(1);

  Bytes host(60'000);
  Publisher on_host(small.table, host_snapshot(*small.table, {host}), options);
  expect_error(ErrorCode::kUsage, [&] { on_host.publish_on_device(); }, {"device"});
}

TEST(DevicePublisher, OfAnEmptyTableIsWhereTheOptionsSay) {
  if (!device_present()) GTEST_SKIP() << "no device";
  const auto table = std::make_shared<const TensorTable>();
  DetectorOptions on_device;
  on_device.device.device = 0;
  Publisher publisher(table, make_detector(table, {}, on_device), {});
  Subscriber subscriber(table, {}, {}, on_device.device);
  EXPECT_TRUE(publisher.on_device() && subscriber.on_device());
  const DeviceDelta& delta = publisher.publish_on_device();
  subscriber.stage(delta.header);
  subscriber.stage_frames(delta.frames);
  subscriber.stage(delta.commit);
  EXPECT_EQ(subscriber.apply().version, 1U);
  EXPECT_FALSE(Publisher(table, make_detector(table, {}), {}).on_device());
}

#if defined(SPARSECAST_CUDA_EMULATION)

TEST(DevicePublisherMemory, TheSteadyStateAllocatesNothingAndWaitsOnce) {
  Small small;
  Random random(4);
  Publisher publisher(small.table, device_snapshot(small.table, {small.live[0]}), {});
  emulation::RuntimeCounts before;
  for (std::uint64_t version = 1; version <= 4; ++version) {
    small.train(random);
    before = emulation::runtime_counts();
    publisher.publish_on_device();
    publisher.commit(version);
  }
  const emulation::RuntimeCounts after = emulation::runtime_counts();
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.objects, before.objects);
  EXPECT_EQ(after.queries, before.queries + 1);
  EXPECT_LT(after.copied_bytes - before.copied_bytes, 20'000U) << "no copy of the weights";
}

TEST(DevicePublisherMemory, APinnedSnapshotComesOnceAndOnlyChangesGoBack) {
  Small small;
  Random random(5);
  Publisher publisher(small.table, pinned_snapshot(small.table, {small.live[0]}), {});
  emulation::RuntimeCounts before;
  for (std::uint64_t version = 1; version <= 3; ++version) {
    small.train(random);
    before = emulation::runtime_counts();
    publisher.publish_on_device();
    publisher.commit(version);
  }
  const emulation::RuntimeCounts after = emulation::runtime_counts();
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.queries, before.queries + 1);
  EXPECT_GE(after.copied_bytes - before.copied_bytes, 60'000U);
  EXPECT_LT(after.copied_bytes - before.copied_bytes, 80'000U);
}

TEST(DevicePublisherOrder, WaitsForTheWeightsAndKeepsTheCallersDevice) {
  cudaSetDevice(0);  // The caller has a context there: without one, none is made to set the device again.
  Small small;
  Publisher publisher(small.table, device_snapshot(small.table, {small.live[0]}, {.device = 1}), {});
  CUevent_st ready;
  publisher.publish(&ready);
  EXPECT_EQ(ready.waits, 1);
  publisher.abort(1);
  publisher.publish_on_device(&ready);
  EXPECT_EQ(ready.waits, 2);
  int device = -1;
  cudaGetDevice(&device);
  EXPECT_EQ(device, 0);
  Bytes host(60'000);
  Publisher on_host(small.table, host_snapshot(*small.table, {host}), {});
  expect_error(ErrorCode::kUsage, [&] { on_host.publish(&ready); }, {"event"});
}

TEST(DevicePublisherOrder, RefusesAStreamThatIsCapturedAndGoesOnAfterwards) {
  Small small;
  Random random(8);
  Publisher publisher(small.table, device_snapshot(small.table, {small.live[0]}), {});
  small.train(random);
  emulation::capture_streams(true);
  expect_error(ErrorCode::kUsage, [&] { publisher.publish(); }, {"captured", "graph"});
  emulation::capture_streams(false);
  EXPECT_GT(publisher.publish().result.changed, 0U);
  publisher.commit(publisher.version() + 1);
}

TEST(DevicePublisherMemory, WhatDoesNotFitIsUnsupportedAndLeavesNothingBehind) {
  Small small;
  const std::size_t live = emulation::runtime_counts().live_allocations;
  for (int successes = 0; successes < 6; ++successes) {
    emulation::fail_allocation_after(successes);
    expect_error(ErrorCode::kUnsupported,
                 [&] { Publisher publisher(small.table, device_snapshot(small.table, {small.live[0]}), {}); });
    emulation::fail_allocation_after(-1);
    EXPECT_EQ(emulation::runtime_counts().live_allocations, live);
  }
}

#endif

}  // namespace
}  // namespace sparsecast::test
