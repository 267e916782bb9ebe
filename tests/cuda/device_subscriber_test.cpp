// SPDX-License-Identifier: Apache-2.0

// Subscribers with tensors on a device, emulated or real, against those of the CPU: the same bytes, the same input
// errors.

#include "sparsecast/subscriber.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/differential.hpp"
#include "support/detectors.hpp"
#include "support/expect_error.hpp"
#include "support/forge.hpp"

namespace sparsecast::test {
namespace {

/// Live tensors and a subscriber over them.
class Engine {
 public:
  Engine(std::shared_ptr<const TensorTable> table, const TensorState& state, std::size_t skew = 0,
         SubscriberOptions options = {}, const DeviceOptions& device = {})
      : live_(element_sizes(*table), state, skew), tensors_(table->size()) {
    std::vector<TensorRef> tensors;
    for (std::size_t t = 0; t < tensors_; ++t)
      tensors.push_back(ref_to((*table)[t], live_[t], std::max(device.device, 0)));
    subscriber.emplace(std::move(table), std::move(tensors), options, with_ordinal(device));
  }
  std::byte* tensor(std::size_t t) { return live_[t]; }
  TensorState state() const {
    TensorState out;
    for (std::size_t t = 0; t < tensors_; ++t) out.push_back(live_.bytes(t));
    return out;
  }
  void write(const TensorState& state) {
    for (std::size_t t = 0; t < tensors_; ++t) std::ranges::copy(state[t], live_[t]);
  }
  /// All frames at once, in device memory.
  void stage_on_device(const Delta& delta) {
    subscriber->stage(delta.header);
    std::uint64_t total = 0;
    for (const Bytes& frame : delta.frames) total += frame.size();
    frames_.reset(allocate_shared(total));
    std::vector<DeviceRecord> records;
    std::byte* at = frames_.get();
    for (const Bytes& frame : delta.frames) {
      std::ranges::copy(frame, at);
      records.push_back({at, static_cast<std::uint32_t>(frame.size())});
      at += frame.size();
    }
    subscriber->stage_frames(records);
    subscriber->stage(delta.commit);
  }

  std::optional<Subscriber> subscriber;

 private:
  DeviceState live_;
  std::size_t tensors_;
  SharedBytes frames_;
};

/// A CPU publisher that goes from state to state.
class Trainer {
 public:
  explicit Trainer(const RandomDelta& delta)
      : state(delta.old_state), publisher(delta.table, host_snapshot(*delta.table, views(state)), options(delta)) {}
  const Delta& step(Random& random, const TensorTable& table) {
    TensorState next = state;
    change_randomly(random, table, next);
    return step_to(next);
  }
  /// In place: the detector knows the memory.
  const Delta& step_to(const TensorState& next) {
    for (std::size_t t = 0; t < next.size(); ++t) std::ranges::copy(next[t], state[t].begin());
    return publisher.publish();
  }

  TensorState state;
  Publisher publisher;

 private:
  static PublisherOptions options(const RandomDelta& delta) {
    PublisherOptions out;
    out.encode = delta.options;
    return out;
  }
};

void stage_shuffled(Subscriber& subscriber, const Delta& delta, Random& random) {
  subscriber.stage(delta.header);
  std::vector<const Bytes*> records{&delta.commit};
  for (const Bytes& frame : delta.frames) records.push_back(&frame);
  if (random.chance(0.3)) records.push_back(records[random.below(records.size())]);
  for (std::size_t i = records.size(); i > 1; --i) std::swap(records[i - 1], records[random.below(i)]);
  for (const Bytes* record : records) subscriber.stage(*record);
}

class DeviceSubscriberTest : public DeviceCases {
 protected:
  DeviceSubscriberTest() : DeviceCases(0.5) {}
};
INSTANTIATE_TEST_SUITE_P(Random, DeviceSubscriberTest, testing::Range(0, 6));

TEST_P(DeviceSubscriberTest, FollowsAPublisherVersionAfterVersion) {
  for_cases(10, [](Random& random) {
    const RandomDelta delta = random_delta(random, {.max_elements = 60'000, .large_chance = 0.3});
    const TensorTable& table = *delta.table;
    Trainer trainer(delta);
    Engine engine(delta.table, delta.old_state, random.chance(0.7) ? 0 : random.between(1, 15));
    ASSERT_EQ(engine.subscriber->digest(), trainer.publisher.digest());
    for (std::uint64_t version = 1; version <= 4; ++version) {
      const TensorState before = engine.state();
      const Delta& published = trainer.step(random, table);
      const bool on_device = delta.options.zstd_level == 0 && random.chance(0.5);
      const auto stage = [&] {
        on_device ? engine.stage_on_device(published) : stage_shuffled(*engine.subscriber, published, random);
      };
      stage();
      ASSERT_TRUE(engine.subscriber->ready());
      ASSERT_EQ(engine.state(), before) << "staging has written";
      const ApplyReport report = engine.subscriber->apply();
      EXPECT_EQ(report.version, version);
      EXPECT_EQ(report.changed, published.result.changed);
      ASSERT_EQ(first_difference(table, engine.state(), trainer.state), "");
      if (random.chance(0.5)) {
        engine.subscriber->undo_last();
        ASSERT_EQ(first_difference(table, engine.state(), before), "");
        ASSERT_EQ(engine.subscriber->version(), version - 1);
        engine.subscriber->audit();
        expect_error(ErrorCode::kUsage, [&] { engine.subscriber->undo_last(); });
        stage();
        engine.subscriber->apply();
      }
      trainer.publisher.commit(version);
      ASSERT_EQ(engine.subscriber->digest(), trainer.publisher.digest());
      engine.subscriber->audit_next();
    }
    engine.subscriber->audit();
  });
}

/// Code and words of what a call throws, or "".
template <class Call>
std::string decision(const Call& call) {
  try {
    call();
    return "";
  } catch (const Error& error) {
    return std::string(to_string(error.code())) + ": " + error.what();
  }
}

TEST_P(DeviceSubscriberTest, RefusesWhatTheCpuRefusesWithItsWords) {
  int refused = 0;
  for_cases(10, [&refused](Random& random) {
    const RandomDelta delta = random_delta(random, {.max_elements = 30'000, .large_chance = 0.3});
    Trainer trainer(delta);
    const Delta published = trainer.step(random, *delta.table);
    std::vector<Bytes> records{published.header};
    records.insert(records.end(), published.frames.begin(), published.frames.end());
    records.push_back(published.commit);

    for (int attempt = 0; attempt < 12; ++attempt) {
      std::vector<Bytes> altered = records;
      Bytes& record = altered[random.below(altered.size())];
      switch (random.below(7)) {
        case 0:  // A wrong byte.
          record[random.below(record.size())] ^= static_cast<std::byte>(random.between(1, 255));
          break;
        case 1:  // The same with every checksum right.
          if (record.size() > 64) record[random.between(16, record.size() - 1)] ^= std::byte{4};
          refresh_checksums(altered);
          break;
        case 2:
          record.resize(8 * random.below(record.size() / 8));
          break;
        case 3:
          altered.erase(altered.begin() + static_cast<std::ptrdiff_t>(random.below(altered.size())));
          break;
        case 4:
          altered.push_back(altered[random.below(altered.size())]);
          break;
        case 5:
          altered.front()[16 + random.below(100)] ^= std::byte{1};  // Stream, versions, table, base digest.
          refresh_checksums(altered);
          break;
        default:
          set_field(altered.back(), at::kCommitDigest, random.next());
          refresh_checksums(altered);
      }
      TensorState host = delta.old_state;
      Subscriber on_host(delta.table, refs_to(*delta.table, live_views(host)), {});
      Engine engine(delta.table, delta.old_state);
      const auto run = [&](Subscriber& subscriber) {
        return decision([&] {
          for (const Bytes& bytes : altered) subscriber.stage(bytes);
          subscriber.apply();
        });
      };
      const std::string expected = run(on_host);
      ASSERT_EQ(run(*engine.subscriber), expected);
      ASSERT_EQ(engine.state(), host);
      ASSERT_EQ(engine.subscriber->version(), on_host.version());
      ASSERT_FALSE(engine.subscriber->dirty());
      refused += expected.empty() ? 0 : 1;
      if (!expected.empty()) {
        // And the right one is taken after.
        engine.subscriber->stage(published);
        engine.subscriber->apply();
        ASSERT_EQ(engine.state(), trainer.state);
      }
    }
  });
  EXPECT_GT(refused, 20);
}

/// Two tensors at two versions, in a form that says what is where.
struct Fixed {
  Fixed() {
    delta.table = std::make_shared<const TensorTable>(
        std::vector<TensorSpec>{{"a", DType::kBF16, {20'000}}, {"b", DType::kF32, {3000}}});
    delta.old_state = random_state(random, *delta.table);
    trainer.emplace(delta);
    published = step();
  }
  Delta step() {
    TensorState next = trainer->state;
    for (std::size_t i = 0; i < next[0].size(); i += 200) next[0][i] ^= std::byte{1};
    next[1][16] ^= std::byte{1};
    return trainer->step_to(next);
  }

  Random random{8};
  RandomDelta delta;
  std::optional<Trainer> trainer;
  Delta published;
};

TEST(DeviceSubscriberRules, AFlippedBitIsFoundByTheAuditAndMendedByAnAnchor) {
  if (!device_present()) GTEST_SKIP() << "no device";
  Fixed fixed;
  SubscriberOptions options;
  options.audit_versions = 3;
  Engine engine(fixed.delta.table, fixed.delta.old_state, 0, options);
  engine.subscriber->stage(fixed.published);
  engine.subscriber->apply();
  engine.tensor(1)[3] ^= std::byte{64};
  int calls = 0;
  expect_error(ErrorCode::kDirty,
               [&] {
                 for (; calls < 4; ++calls) engine.subscriber->audit_next();
               },
               {"tensor 'b'"});
  EXPECT_LE(calls, 3);
  EXPECT_TRUE(engine.subscriber->dirty());
  expect_error(ErrorCode::kDirty, [&] { engine.subscriber->stage(fixed.published.header); });
  const StateDigest digest = fixed.published.result.result_digest;
  expect_error(ErrorCode::kDigestMismatch, [&] { engine.subscriber->reset(1, digest); });
  engine.write(fixed.trainer->state);
  engine.subscriber->reset(1, digest);
  EXPECT_FALSE(engine.subscriber->dirty());
  fixed.trainer->publisher.commit(1);
  engine.subscriber->stage(fixed.step());
  engine.subscriber->apply();
  EXPECT_EQ(engine.state(), fixed.trainer->state);
}

TEST(DeviceSubscriberRules, FramesComeAllAtOnceOrOneByOne) {
  if (!device_present()) GTEST_SKIP() << "no device";
  Fixed fixed;
  Engine engine(fixed.delta.table, fixed.delta.old_state);
  Subscriber& subscriber = *engine.subscriber;
  expect_error(ErrorCode::kIncomplete, [&] { subscriber.stage_frames({}); }, {"header"});
  subscriber.stage(fixed.published.header);
  subscriber.stage(fixed.published.frames[0]);
  expect_error(ErrorCode::kUsage, [&] { subscriber.stage_frames({}); }, {"already"});
  engine.stage_on_device(fixed.published);
  subscriber.stage(fixed.published.frames[0]);  // A repetition.
  subscriber.apply();
  EXPECT_EQ(engine.state(), fixed.trainer->state);

  expect_error(ErrorCode::kCorrupt, [&] { subscriber.reserve_frames(std::uint64_t{1} << 40); }, {"larger"});
  std::byte* const memory = subscriber.reserve_frames(1000);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 256, 0U);
  expect_error(ErrorCode::kUsage, [&] { subscriber.undo_last(); });

  TensorState host = fixed.delta.old_state;
  Subscriber on_host(fixed.delta.table, refs_to(*fixed.delta.table, live_views(host)), {});
  on_host.stage(fixed.published.header);
  expect_error(ErrorCode::kUsage, [&] { on_host.stage_frames({}); }, {"device"});
  EXPECT_NE(on_host.reserve_frames(1), nullptr);
  expect_error(ErrorCode::kCorrupt, [&] { on_host.reserve_frames(std::uint64_t{1} << 40); }, {"larger"});
}

TEST(DeviceSubscriberRules, StridedTensorsFollow) {
  if (!device_present()) GTEST_SKIP() << "no device";
  Random random(2);
  RandomDelta delta;
  constexpr std::uint64_t kRows = 120;
  constexpr std::uint64_t kColumns = 77;
  constexpr std::uint64_t kPitch = 90;
  delta.table = std::make_shared<const TensorTable>(std::vector<TensorSpec>{{"t", DType::kF16, {kRows, kColumns}}});
  delta.old_state = random_state(random, *delta.table);
  Trainer trainer(delta);
  SharedBytes live(allocate_shared(2 * kRows * kPitch));
  const auto copy_rows = [&](std::byte* pitched, const std::byte* rows) {
    for (std::uint64_t r = 0; r < kRows; ++r)
      std::memcpy(pitched + 2 * r * kPitch, rows + 2 * r * kColumns, 2 * kColumns);
  };
  std::memset(live.get(), 0x55, 2 * kRows * kPitch);
  copy_rows(live.get(), delta.old_state[0].data());
  Subscriber subscriber(delta.table, {ref_to((*delta.table)[0], live.get(), 0, {kPitch, 1})}, {});
  Bytes expected(2 * kRows * kPitch, std::byte{0x55});
  for (std::uint64_t version = 1; version <= 2; ++version) {
    subscriber.stage(trainer.step(random, *delta.table));
    subscriber.apply();
    subscriber.audit();
    trainer.publisher.commit(version);
    copy_rows(expected.data(), trainer.state[0].data());
    EXPECT_EQ(std::memcmp(live.get(), expected.data(), expected.size()), 0);
  }
  expect_error(ErrorCode::kUsage,
               [&] { Subscriber bad(delta.table, {ref_to((*delta.table)[0], live.get(), 0, {1})}, {}); }, {"'t'"});
  expect_error(ErrorCode::kUsage, [&] { Subscriber bad(delta.table, std::vector<TensorRef>{}, {}); });
}

#if defined(SPARSECAST_CUDA_EMULATION)

TEST(DeviceSubscriberOrder, TakesEventsAndKeepsTheCallersDevice) {
  cudaSetDevice(0);  // The caller has a context there: without one, none is made to set the device again.
  Fixed fixed;
  Engine engine(fixed.delta.table, fixed.delta.old_state, 0, {}, {.device = 1});
  engine.stage_on_device(fixed.published);
  CUevent_st after;
  CUevent_st written;
  written.device = 1;
  engine.subscriber->apply({&after, &written});
  EXPECT_EQ(after.waits, 1);
  EXPECT_EQ(written.records, 1);
  int device = -1;
  cudaGetDevice(&device);
  EXPECT_EQ(device, 0);

  TensorState host = fixed.delta.old_state;
  Subscriber on_host(fixed.delta.table, refs_to(*fixed.delta.table, live_views(host)), {});
  on_host.stage(fixed.published);
  expect_error(ErrorCode::kUsage, [&] { on_host.apply({&after, nullptr}); }, {"device"});
  on_host.apply();
  EXPECT_EQ(host, fixed.trainer->state);
}

TEST(DeviceSubscriberMemory, TheSteadyStateAllocatesNothingAndWaitsForDecisionsOnly) {
  Fixed fixed;
  Engine engine(fixed.delta.table, fixed.delta.old_state);
  emulation::RuntimeCounts before;
  Delta delta = fixed.published;
  for (std::uint64_t version = 1; version <= 6; ++version) {
    const bool on_device = version % 2 == 0;
    before = emulation::runtime_counts();
    on_device ? engine.stage_on_device(delta) : engine.subscriber->stage(delta);
    engine.subscriber->apply();
    const emulation::RuntimeCounts after = emulation::runtime_counts();
    EXPECT_EQ(after.queries, before.queries + 3);
    EXPECT_EQ(after.objects, before.objects);
    if (version > 2) {
      EXPECT_EQ(after.allocations, before.allocations);
      EXPECT_LT(after.copied_bytes - before.copied_bytes, 10'000U);
    }
    fixed.trainer->publisher.commit(version);
    ASSERT_EQ(engine.state(), fixed.trainer->state);
    delta = fixed.step();
  }
}

#endif

}  // namespace
}  // namespace sparsecast::test
