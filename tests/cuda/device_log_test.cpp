// SPDX-License-Identifier: Apache-2.0

// A delta log between devices, emulated or real: a trainer writes it from device memory, an engine follows it in device
// memory.

#ifdef SPARSECAST_HAVE_LOG

#include <gtest/gtest.h>

#include <bit>
#include <functional>
#include <iostream>
#include <map>
#include <optional>

#include "core/word.hpp"
#include "cuda/device_access.hpp"
#include "sparsecast/log_follower.hpp"
#include "sparsecast/log_publisher.hpp"
#include "sparsecast/safetensors.hpp"
#include "support/detectors.hpp"
#include "support/expect_error.hpp"
#include "support/fault_fs.hpp"
#include "support/memory_store.hpp"
#include "support/safetensors_bytes.hpp"
#include "support/training_model.hpp"

namespace sparsecast::test {
namespace {

constexpr std::chrono::milliseconds kLong{30'000};

StateDigest digest_of(const TrainingModel& model) {
  return sum(digest_tensors(*model.table(), refs_to(*model.table(), model.live())));
}

/// Tensors of the table in memory that host and device reach; `gap` elements lie between two of a tensor's.
class DeviceTensors {
 public:
  explicit DeviceTensors(const TensorTable& table, std::size_t gap = 0) : table_(table), step_(gap + 1) {
    for (const TensorSpec& spec : table) memory_.emplace_back(allocate_shared(spec.bytes() * step_));
  }

  void write(const Storage& from) {
    for_each_element([&](std::size_t t, std::size_t to, std::size_t at, std::size_t bytes) {
      std::memcpy(memory_[t].get() + to, from[t].data() + at, bytes);
    });
  }
  Storage read() const {
    Storage out;
    for (const TensorSpec& spec : table_) out.emplace_back(spec.bytes());
    for_each_element([&](std::size_t t, std::size_t from, std::size_t at, std::size_t bytes) {
      std::memcpy(out[t].data() + at, memory_[t].get() + from, bytes);
    });
    return out;
  }
  std::vector<TensorRef> refs() const {
    std::vector<TensorRef> refs;
    for (std::size_t t = 0; t < table_.size(); ++t) {
      TensorRef& ref = refs.emplace_back(ref_to(table_[t], memory_[t].get(), 0));
      if (step_ == 1) continue;
      std::int64_t stride = static_cast<std::int64_t>(step_);
      ref.strides.resize(ref.shape.size());
      for (std::size_t d = ref.shape.size(); d-- > 0;) {
        ref.strides[d] = stride;
        stride *= static_cast<std::int64_t>(ref.shape[d]);
      }
    }
    return refs;
  }

 private:
  template <class Visit>
  void for_each_element(const Visit& visit) const {
    for (std::size_t t = 0; t < table_.size(); ++t) {
      const std::size_t size = element_size(table_[t].dtype);
      for (std::size_t at = 0; at < table_[t].bytes(); at += size) visit(t, at * step_, at, size);
    }
  }

  const TensorTable& table_;
  std::size_t step_;
  std::vector<SharedBytes> memory_;
};

class DeviceLog : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!device_present()) GTEST_SKIP() << "no device answers";
    fs_.make_directory("scratch");
    live_.emplace(*model_.table());
    live_->write(model_.weights());
    LogReader reader(store_);
    LogWriter writer(reader, {});
    LogCreation creation;
    creation.table = model_.table();
    creation.digest = digest_of(model_);
    writer.create(creation);
    write_anchor(writer, 0);
    states_[0] = model_.weights();
  }

  void write_anchor(LogWriter& writer, std::uint64_t version) {
    std::string data;
    for (const auto& bits : model_.weights()) data.append(reinterpret_cast<const char*>(bits.data()), bits.size());
    const Bytes file = safetensors_file(std::vector<TensorSpec>(model_.table()->begin(), model_.table()->end()), data);
    fs_.put_file("model.safetensors", {reinterpret_cast<const char*>(file.data()), file.size()});
    writer.write_anchor(fs_, "model.safetensors", version);
  }

  std::unique_ptr<LogPublisher> publisher() {
    LogPublisherOptions options;
    options.detection.pinned = GetParam();
    options.detection.device.device = 0;
    options.deadline = kLong;
    return std::make_unique<LogPublisher>(store_, fs_, LogTrust{}, model_.table(), live_->refs(), options);
  }

  /// An engine that holds `weights`, and follows.
  struct Engine {
    Engine(DeviceLog& log, const Storage& weights, std::size_t gap, const std::string& state)
        : tensors(*log.model_.table(), gap) {
      tensors.write(weights);
      SubscriberOptions options;
      options.stream = LogReader(log.store_).head()->stream;
      subscriber.emplace(log.model_.table(), tensors.refs(), options);
      follower.emplace(log.store_, log.fs_, state,
                       make_subscriber_target(*subscriber, log.model_.table(), tensors.refs(), log.fs_, "scratch",
                                              [this](bool paused) {
                                                pauses += paused ? 1 : 0;
                                                return true;
                                              }),
                       FollowerOptions{});
    }
    DeviceTensors tensors;
    int pauses = 0;
    std::optional<Subscriber> subscriber;
    std::optional<LogFollower> follower;
  };

  FaultFileSystem fs_;
  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  TrainingModel model_{run_seed(), 6};
  std::optional<DeviceTensors> live_;  ///< Where there is a device.
  std::map<std::uint64_t, Storage> states_;
};

TEST_P(DeviceLog, AnEngineHasTheTrainersBytesAtEveryVersion) {
  SCOPED_TRACE(seed_note());
  Engine engine(*this, model_.weights(), 0, "state");
  const auto publisher = this->publisher();
  for (int step = 0; step < 5; ++step) {
    model_.train(1e-3F);
    live_->write(model_.weights());
    const std::uint64_t version = publisher->publish("step");
    const Publication done = publisher->wait(kLong);
    EXPECT_EQ(done.commit.digest, digest_of(model_));
    EXPECT_EQ(engine.follower->step({}).version, version);
    EXPECT_EQ(engine.tensors.read(), model_.weights());
    EXPECT_EQ(engine.subscriber->digest(), done.commit.digest);
  }
  EXPECT_EQ(engine.pauses, 6);  // The take-over is a version of its own.
}

TEST_P(DeviceLog, DeltasAreAsSmallAsThoseOfTheHost) {
  SCOPED_TRACE(seed_note());
  const auto other = std::make_shared<MemoryStore>();
  LogReader reader(other);
  LogWriter writer(reader, {});
  LogCreation creation;
  creation.table = model_.table();
  creation.digest = digest_of(model_);
  writer.create(creation);
  LogPublisherOptions options;
  options.deadline = kLong;
  LogPublisher on_host(other, fs_, {}, model_.table(), host_snapshot(*model_.table(), model_.live()), options);
  const auto on_device = publisher();
  for (int step = 0; step < 3; ++step) {
    model_.train(1e-3F);
    live_->write(model_.weights());
    on_host.publish();
    on_device->publish();
    EXPECT_EQ(on_device->wait(kLong).commit.delta_bytes, on_host.wait(kLong).commit.delta_bytes);
    EXPECT_EQ(on_device->wait(kLong).commit.changed, on_host.wait(kLong).commit.changed);
  }
}

TEST_P(DeviceLog, AnEngineThatHoldsSomethingElseIsSeededByTheAnchorAlsoInViews) {
  SCOPED_TRACE(seed_note());
  const auto publisher = this->publisher();
  for (int step = 0; step < 3; ++step) {
    model_.train(1e-3F);
    live_->write(model_.weights());
    publisher->publish();
    publisher->wait(kLong);
  }
  for (const std::size_t gap : {0U, 1U}) {
    Storage other = model_.weights();
    other[0][0] ^= std::byte{1};
    Engine engine(*this, other, gap, "state" + std::to_string(gap));
    const FollowReport report = engine.follower->step({});
    EXPECT_TRUE(report.reseeded);
    EXPECT_EQ(report.version, publisher->head().version);
    EXPECT_EQ(engine.tensors.read(), model_.weights());
    EXPECT_NO_THROW(engine.subscriber->audit());
  }
}

TEST_P(DeviceLog, ATrainerWithOtherWeightsIsRefused) {
  model_.train(1e-3F);
  live_->write(model_.weights());
  expect_error(ErrorCode::kWrongBase, [&] { publisher(); }, {});
}

#if defined(SPARSECAST_CUDA_EMULATION)

/// Prints what a step of one side took, and returns it.
emulation::RuntimeCounts print_since(const emulation::RuntimeCounts& before, const char* side, std::uint64_t delta) {
  const emulation::RuntimeCounts took = emulation::runtime_counts().since(before);
  std::cout << side << ": " << took.launches << " launches, " << took.queries << " host waits, " << took.bus_bytes
            << " bytes over the bus, for a delta of " << delta << '\n';
  return took;
}

TEST_P(DeviceLog, OnlyDeltasCrossTheBus) {
  Engine engine(*this, model_.weights(), 0, "state");
  const auto publisher = this->publisher();
  engine.follower->step({});
  for (int step = 0; step < 2; ++step) {
    model_.train();
    live_->write(model_.weights());
    const emulation::RuntimeCounts before = emulation::runtime_counts();
    publisher->publish();
    const std::uint64_t delta = publisher->wait(kLong).commit.delta_bytes;
    EXPECT_LT(print_since(before, "publish", delta).bus_bytes, 4 * delta + 4096);

    const emulation::RuntimeCounts between = emulation::runtime_counts();
    EXPECT_TRUE(engine.follower->step({}).version);
    EXPECT_LT(print_since(between, "follow", delta).bus_bytes, 2 * delta + 4096);
    EXPECT_EQ(engine.tensors.read(), model_.weights());
  }
}

#endif

/// A log whose trainer has fp32 masters, or marks what changed; a follower on the host.
class DeviceLogDetector : public ::testing::Test {
 protected:
  static constexpr std::size_t kElements = 5000;

  void SetUp() override {
    if (!device_present()) GTEST_SKIP() << "no device answers";
    fs_.make_directory("scratch");
    masters_.reset(allocate_shared(4 * kElements));
    bf16_.reset(allocate_shared(2 * kElements));
    for (std::size_t i = 0; i < kElements; ++i) masters()[i] = static_cast<float>(random_.between(1, 1000)) / 512.0F;
    cast();
    LogReader reader(store_);
    LogWriter writer(reader, {});
    LogCreation creation;
    creation.table = table_;
    creation.digest = sum(digest_tensors(*table_, refs_to(*table_, std::vector<ConstBytes>{held_})));
    writer.create(creation);
    SubscriberOptions options;
    options.stream = LogReader(store_).head()->stream;
    subscriber_.emplace(table_, refs_to(*table_, std::vector<MutableBytes>{held_}), options);
    follower_.emplace(store_, fs_, "state",
                      make_subscriber_target(*subscriber_, table_, refs_to(*table_, std::vector<MutableBytes>{held_}),
                                             fs_, "scratch"),
                      FollowerOptions{});
  }

  float* masters() { return reinterpret_cast<float*>(masters_.get()); }
  /// Casts the masters to what receivers hold at first, and to the trainer's tensor.
  void cast() {
    for (std::size_t i = 0; i < kElements; ++i) {
      const std::uint16_t bits = bf16_from_f32_bits(std::bit_cast<std::uint32_t>(masters()[i]));
      std::memcpy(bf16_.get() + 2 * i, &bits, 2);
    }
    if (held_.empty()) held_.assign(bf16_.get(), bf16_.get() + 2 * kElements);
  }

  /// Publishes steps of training, and has the follower take each.
  void expect_followed(std::unique_ptr<Detector> detector, EncodeOptions encode, bool casts,
                       const std::function<void(std::size_t)>& changed) {
    LogPublisherOptions options;
    options.deadline = kLong;
    Detector* const marked = detector.get();
    LogPublisher publisher(store_, fs_, {}, table_, std::move(detector), options, encode);
    for (std::size_t step = 0; step < 3; ++step) {
      for (std::size_t i = step; i < kElements; i += 40) {
        masters()[i] += 1.0F;
        changed(i);
      }
      if (!casts) cast();
      if (words_ != nullptr) marked->mark(0, reinterpret_cast<const std::uint64_t*>(words_.get()));
      publisher.publish();
      publisher.wait(kLong);
      if (casts) cast();
      follower_->step({});
      EXPECT_EQ(std::memcmp(held_.data(), bf16_.get(), 2 * kElements), 0) << "step " << step;
    }
  }

  Random random_{run_seed()};
  FaultFileSystem fs_;
  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  std::shared_ptr<const TensorTable> table_ =
      std::make_shared<const TensorTable>(std::vector<TensorSpec>{{"w", DType::kBF16, {kElements}}});
  SharedBytes masters_;  ///< These three where there is a device.
  SharedBytes bf16_;
  SharedBytes words_;
  Bytes held_;
  std::optional<Subscriber> subscriber_;
  std::optional<LogFollower> follower_;
};

TEST_F(DeviceLogDetector, ASnapshotOfMastersIsOfTheirCast) {
  DetectorOptions options;
  options.device.device = 0;
  expect_followed(make_detector(table_, master_refs(*table_, {masters()}, 0), options), {}, true, [](std::size_t) {});
}

TEST_F(DeviceLogDetector, AFusedCastCastsInPlace) {
  expect_followed(device_fused_cast(table_, {masters()}, {bf16_.get()}), {}, true, [](std::size_t) {});
}

TEST_F(DeviceLogDetector, AMaskNeedsNoOldBits) {
  const std::size_t bytes = (kElements + 63) / 64 * 8;
  words_.reset(allocate_shared(bytes));
  std::memset(words_.get(), 0, bytes);
  EncodeOptions raw;
  raw.values = ValueCodec::kRaw;
  expect_followed(device_mask(table_, {bf16_.get()}), raw, false,
                  [this](std::size_t i) { words_[i / 8] |= std::byte{1} << (i % 8); });
}

INSTANTIATE_TEST_SUITE_P(Snapshot, DeviceLog, ::testing::Bool(),
                         [](const auto& made) { return made.param ? "pinned" : "onDevice"; });

}  // namespace
}  // namespace sparsecast::test

#endif
