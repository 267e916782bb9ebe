// SPDX-License-Identifier: Apache-2.0

// Tensors that are views of larger memory, and tables whose tensors are boxes of others, on a device, emulated or real:
// the frames are the CPU's of the same tensors made contiguous, digests those of the origins.

#include <gtest/gtest.h>

#include "codec/codec_common.hpp"
#include "cuda/apply/device_applier.hpp"
#include "cuda/viewed_tensors.hpp"
#include "sparsecast/publisher.hpp"
#include "sparsecast/subscriber.hpp"
#include "support/delta_bytes.hpp"
#include "support/detectors.hpp"
#include "support/expect_error.hpp"

namespace sparsecast::test {
namespace {

StateDigest minus(StateDigest a, const StateDigest& b) { return a -= b; }

/// The FRAME records of a delta, each in memory exactly as large.
struct FramesOnDevice {
  explicit FramesOnDevice(const std::vector<Bytes>& delta) {
    for (const Bytes& record : delta) {
      if (peek_record(record).kind != RecordKind::kFrame) continue;
      storage.emplace_back(allocate_shared(record.size()));
      std::ranges::copy(record, storage.back().get());
      records.push_back({storage.back().get(), static_cast<std::uint32_t>(record.size())});
    }
  }
  std::vector<SharedBytes> storage;
  std::vector<DeviceRecord> records;
};

class DeviceViews : public DeviceCases {
 protected:
  DeviceViews() : DeviceCases(0.6) {}
};
INSTANTIATE_TEST_SUITE_P(Random, DeviceViews, testing::Range(0, 6));

TEST_P(DeviceViews, EncodeToTheFramesOfTheirContiguousCopies) {
  for_cases(14, [](Random& random) {
    BoxedDelta boxes = random_boxes(random, random.chance(0.7));
    if (random.chance(0.4)) {
      boxes.delta.options.positions = PositionMode::kContext;
      boxes.delta.options.values = ValueCodec::kUlp;
    }
    const RandomDelta& delta = boxes.delta;
    const auto detector = make_compare_detector(*boxes.plain, views(delta.new_state), views(delta.old_state));
    ExpectedFrames expected = encode_on_cpu(*boxes.plain, *detector, delta.options);
    expected.digest_change =
        minus(digest_by_element(*delta.table, delta.new_state), digest_by_element(*delta.table, delta.old_state));

    const ViewedTensors current(*delta.table, delta.new_state, random);
    const ViewedTensors snapshot(*delta.table, delta.old_state, random);
    std::vector<cuda::CompareTensor> tensors;
    for (std::size_t t = 0; t < delta.table->size(); ++t) {
      const TensorRef& live = current.tensors()[t];
      const TensorRef& old = snapshot.tensors()[t];
      tensors.push_back({live.data, old.data, live.strides, old.strides});
    }
    cuda::DeviceEncoderOptions memory;
    if (random.chance(0.5)) memory.chunk_bytes = random.between(1, 300'000);
    const bool refresh = random.chance(0.7);
    auto encoder = cuda::DeviceEncoder::compare(*delta.table, tensors, refresh, delta.options, memory);
    encoder.start(nullptr);
    expect_same_frames(encoder.finish(test_header(*delta.table, delta.options)), expected);
    current.expect_holds(delta.new_state, "live tensor");
    snapshot.expect_holds(refresh ? delta.new_state : delta.old_state, "snapshot");
  });
}

TEST_P(DeviceViews, ApplyAndRollBackWithTheDigestsOfTheirOrigins) {
  for_cases(10, [](Random& random) {
    const BoxedDelta boxes = random_boxes(random, random.chance(0.8));
    const TensorTable& table = *boxes.delta.table;
    const TensorState& before = boxes.delta.old_state;
    const TensorState& after = boxes.delta.new_state;
    const std::vector<Bytes> records = encode_records(*boxes.plain, before, after, boxes.delta.options);
    const ViewedTensors live(table, before, random);
    const std::uint64_t entry_bytes = random.chance(0.5) ? ~std::uint64_t{0} : 0;
    cuda::DeviceApplier applier(table, live.tensors(),
                                {.keep_replaced = cuda::KeepReplaced::kAll, .entry_bytes = entry_bytes});
    const FramesOnDevice frames(records);
    const auto expect_state = [&](const TensorState& was, const TensorState& is, const char* what) {
      const std::vector<StateDigest> changes = applier.digest_changes();
      for (std::size_t t = 0; t < table.size(); ++t) {
        const StateDigest expected = digest_by_element(table, t, is[t]);
        EXPECT_EQ(changes[t], minus(expected, digest_by_element(table, t, was[t]))) << what << ", tensor " << t;
        EXPECT_EQ(applier.digests(t, 1, nullptr)[0], expected) << what << ", tensor " << t;
      }
      live.expect_holds(is, what);
    };
    applier.stage(parse_header(records.front()), frames.records, nullptr);
    applier.apply(Direction::kForward, nullptr);
    expect_state(before, after, "apply");
    applier.restore(nullptr);
    expect_state(after, before, "restore");
    if (boxes.delta.options.values == ValueCodec::kRaw) return;
    applier.apply(Direction::kForward, nullptr);
    applier.apply(Direction::kInverse, nullptr);
    expect_state(after, before, "inverse");
  });
}

TEST_P(DeviceViews, ExpandWithTheDigestChangeOfTheirOrigins) {
  for_cases(6, [](Random& random) {
    BoxedDelta boxes = random_boxes(random, true);
    keep_to_numbers(boxes.delta, false);
    const TensorTable& table = *boxes.delta.table;
    const std::vector<Bytes> records =
        encode_records(*boxes.plain, boxes.delta.old_state, boxes.delta.new_state, boxes.delta.options);
    const ViewedTensors live(table, boxes.delta.old_state, random);
    cuda::DeviceApplier applier(table, live.tensors());
    const FramesOnDevice frames(records);
    applier.stage(parse_header(records.front()), frames.records, nullptr);
    EXPECT_EQ(applier.prepare_expansion(Direction::kForward, nullptr),
              minus(digest_by_element(table, boxes.delta.new_state), digest_by_element(table, boxes.delta.old_state)));
    live.expect_holds(boxes.delta.old_state, "checking has written");
  });
}

TEST_P(DeviceViews, PublishCommitAndAbortOverASnapshotOfTheCaller) {
  for_cases(6, [](Random& random) {
    const BoxedDelta boxes = random_boxes(random, random.chance(0.7));
    const auto& table = boxes.delta.table;
    TensorState held = boxes.delta.old_state;
    TensorState weights = boxes.delta.new_state;
    ViewedTensors live(*table, weights, random);
    const ViewedTensors snapshot(*table, held, random);
    const ViewedTensors engine(*table, held, random);
    DeviceOptions device;
    if (random.chance(0.5)) device.chunk_bytes = random.between(1, 200'000);
    PublisherOptions options;
    options.encode = boxes.delta.options;
    Publisher publisher(table, device_snapshot_over(table, live.tensors(), snapshot.tensors(), device), options);
    EXPECT_EQ(publisher.digest(), digest_by_element(*table, held));
    TensorState host_live = weights;
    TensorState host_snapshot = held;
    Publisher on_host(
        table,
        host_snapshot_over(*table, refs_to(*table, live_views(host_live)), refs_to(*table, live_views(host_snapshot))),
        options);
    Subscriber subscriber(table, engine.tensors(), SubscriberOptions{});
    for (int step = 0; step < 4; ++step) {
      SCOPED_TRACE(testing::Message() << "step " << step << ", values " << static_cast<int>(options.encode.values));
      const Delta& delta = publisher.publish();
      const std::uint64_t version = delta.info.version;
      const Delta& expected = on_host.publish();
      EXPECT_EQ(delta.header, expected.header);
      EXPECT_EQ(delta.frames, expected.frames);
      EXPECT_EQ(delta.commit, expected.commit);
      EXPECT_EQ(delta.result.result_digest, digest_by_element(*table, weights));
      if (random.chance(0.6)) {
        subscriber.stage(delta);
        subscriber.apply();
        publisher.commit(version);
        on_host.commit(version);
        held = weights;
      } else {
        publisher.abort(version);
        on_host.abort(version);
      }
      snapshot.expect_holds(held, "snapshot");
      engine.expect_holds(held, "engine");
      live.expect_holds(weights, "live tensor");
      EXPECT_EQ(publisher.digest(), digest_by_element(*table, held));
      EXPECT_EQ(subscriber.digest(), publisher.digest());
      change_randomly(random, *table, weights);
      live.write(weights);
      for (std::size_t t = 0; t < weights.size(); ++t) std::ranges::copy(weights[t], host_live[t].begin());
    }
    subscriber.audit();
  });
}

/// A publisher of contiguous tensors with one of the detectors that know nothing of views.
class Trainer {
 public:
  enum Kind { kSnapshot, kPinned, kCast, kMask };

  Trainer(Kind kind, const BoxedDelta& boxes, Random& random)
      : kind_(kind), table_(*boxes.delta.table), live_(table_, boxes.delta.old_state, random, false) {
    PublisherOptions options;
    options.encode = boxes.delta.options;
    if (kind == kMask) options.encode.values = ValueCodec::kRaw;
    publisher.emplace(boxes.delta.table, detector(boxes.delta.table, {.chunk_bytes = random.between(1, 200'000)}),
                      options);
  }
  /// Trains from `held` to something near `weights`, which takes on what it is.
  void train(const TensorState& held, TensorState& weights) {
    for (std::size_t t = 0; t < table_.size(); ++t) {
      if (kind_ == kCast) train_masters(t, held[t], weights[t]);
      if (kind_ == kMask) mark_all(t);
    }
    if (kind_ != kCast) live_.write(weights);
  }
  void expect_holds(const TensorState& state) const { live_.expect_holds(state, "live tensor"); }

  std::optional<Publisher> publisher;

 private:
  bool is_cast(std::size_t t) const { return table_[t].dtype == DType::kBF16; }

  std::unique_ptr<Detector> detector(const std::shared_ptr<const TensorTable>& table, const DeviceOptions& device) {
    std::vector<const void*> d_live;
    std::vector<const float*> d_masters;
    std::vector<void*> d_bf16;
    for (std::size_t t = 0; t < table_.size(); ++t) {
      masters_.emplace_back(allocate_shared(is_cast(t) ? 2 * table_[t].bytes() : 0));
      d_live.push_back(live_.tensors()[t].data);
      d_bf16.push_back(live_.tensors()[t].data);
      d_masters.push_back(is_cast(t) ? reinterpret_cast<const float*>(masters_[t].get()) : nullptr);
    }
    switch (kind_) {
      case kSnapshot:
        return device_snapshot(table, d_live, device);
      case kPinned:
        return pinned_snapshot(table, d_live, device);
      case kCast:
        return device_fused_cast(table, d_masters, d_bf16, device);
      default:
        auto mask = device_mask(table, d_live, device);
        mask_ = mask.get();
        return mask;
    }
  }
  void train_masters(std::size_t t, const Bytes& held, Bytes& weights) {
    if (!is_cast(t)) {
      weights = held;
      return;
    }
    for (std::uint64_t i = 0; i < table_[t].elements(); ++i) {
      const std::uint64_t master = read_element(weights.data(), 2, i) << 16;
      write_element(weights.data(), 2, i, bf16_from_f32_bits(static_cast<std::uint32_t>(master)));
      write_element(masters_[t].get(), 4, i, master);
    }
  }
  void mark_all(std::size_t t) {
    const std::size_t bytes = (table_[t].elements() + 63) / 64 * 8;
    const std::byte* at = flags_.emplace_back(allocate_shared(bytes)).get();
    std::ranges::fill(std::span(flags_.back().get(), bytes), std::byte{0xFF});
    mask_->mark(t, reinterpret_cast<const std::uint64_t*>(at), nullptr);
  }

  Kind kind_;
  const TensorTable& table_;
  ViewedTensors live_;
  std::vector<SharedBytes> masters_;
  std::vector<SharedBytes> flags_;
  Detector* mask_ = nullptr;
};

TEST_P(DeviceViews, EveryDetectorDigestsAtTheOrigins) {
  for_cases(6, [this](Random& random) {
    const int kind = GetParam() % 4;
    SCOPED_TRACE(testing::Message() << "kind " << kind);
    const BoxedDelta boxes = random_boxes(random, true);
    const TensorTable& table = *boxes.delta.table;
    TensorState held = boxes.delta.old_state;
    Trainer trainer(static_cast<Trainer::Kind>(kind), boxes, random);
    EXPECT_EQ(trainer.publisher->digest(), digest_by_element(table, held));
    for (int step = 0; step < 2; ++step) {
      TensorState weights = held;
      change_randomly(random, table, weights);
      trainer.train(held, weights);
      const Delta& delta = trainer.publisher->publish();
      EXPECT_EQ(delta.result.result_digest, digest_by_element(table, weights));
      trainer.publisher->commit(delta.info.version);
      trainer.expect_holds(weights);
      held = weights;
    }
  });
}

TEST(DeviceViewErrors, AreTypedAndNameTheTensor) {
  if (!device_present()) GTEST_SKIP() << "no device";
  const auto table = std::make_shared<const TensorTable>(std::vector<TensorSpec>{{"t", DType::kF32, {4, 8}}});
  const SharedBytes live(allocate_shared(256));
  const SharedBytes copy(allocate_shared(256));
  const auto at = [&](std::byte* data, std::vector<std::int64_t> strides = {}) {
    return ref_to((*table)[0], data, 0, std::move(strides));
  };
  const auto make = [&](const TensorRef& a, const TensorRef& b) { device_snapshot_over(table, {a}, {b}); };
  const auto refused = [&](const TensorRef& a, const TensorRef& b, std::initializer_list<std::string_view> words) {
    expect_error(
        ErrorCode::kUsage, [&] { make(a, b); }, words);
  };
  make(at(live.get(), {16, 1}), at(copy.get()));
  refused(at(nullptr), at(copy.get()), {"'t'", "live", "null"});
  refused(at(live.get()), at(nullptr), {"'t'", "snapshot", "null"});
  refused(at(live.get()), at(copy.get() + 2), {"snapshot", "aligned"});
  refused(at(live.get(), {1}), at(copy.get()), {"'t'", "stride"});
  refused(at(live.get()), at(copy.get(), {1, 2, 3}), {"'t'", "stride"});
  refused(at(live.get()), at(live.get()), {"'t'", "itself"});
  refused(at(live.get()), ref_to((*table)[0], copy.get()), {"device of the live tensors"});
  expect_error(ErrorCode::kUsage, [&] { device_snapshot_over(table, {}, {at(copy.get())}); }, {"table of 1"});
  expect_error(ErrorCode::kUnsupported,
               [&] {
                 device_snapshot_over(table, {at(live.get(), {16, 1})}, {});
               },
               {"'t'", "views"});
  const auto detector = [&] { return device_snapshot_over(table, {at(live.get(), {0, 1})}, {at(copy.get(), {0, 1})}); };
  expect_error(ErrorCode::kUsage, [&] { Publisher publisher(table, detector(), {}); }, {"'t'", "overlap"});
  const auto origin = [](std::size_t dimensions) {
    return std::make_shared<const TensorTable>(
        std::vector<TensorSpec>{{"deep", DType::kU8, std::vector<std::uint64_t>(dimensions, 1)}},
        std::vector<DigestOrigin>{{{1, 2}, 0, std::vector<std::int64_t>(dimensions, 1)}});
  };
  const auto publish = [&](const auto& of, const auto& with) {
    Publisher publisher(of, device_snapshot(with, {live.get()}), {});
  };
  publish(origin(8), origin(8));
  expect_error(ErrorCode::kUsage, [&] { publish(origin(9), origin(9)); }, {"'deep'", "8"});
  const auto plain = std::make_shared<const TensorTable>(std::vector<TensorSpec>{(*origin(8))[0]});
  expect_error(ErrorCode::kTableMismatch, [&] { publish(origin(8), plain); }, {"origins"});
}

}  // namespace
}  // namespace sparsecast::test
