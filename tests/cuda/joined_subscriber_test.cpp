// SPDX-License-Identifier: Apache-2.0

// One subscriber of several delta streams, on the host and on a device, against a subscriber for each stream: the same
// bytes and digests, applied or rolled back, and the same refusals.

#include "endpoint/subscriber_state.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "cuda/differential.hpp"
#include "support/detectors.hpp"
#include "support/expect_error.hpp"

namespace sparsecast::test {
namespace {

ErrorCode code_of(const std::function<void()>& step) {
  try {
    step();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode{};
}

/// Streams with codecs of their own, of which the last is the first once more: two places of one route.
class Received {
 public:
  explicit Received(Random& random) {
    for (std::size_t s = random.between(1, 5); s > 0; --s) {
      RandomDelta delta = random_delta(random, {.max_tensors = 3, .max_elements = 20'000, .large_chance = 0.2});
      delta.options.zstd_level = 0;
      tables.push_back(delta.table);
      trained.push_back(delta.old_state);
      PublisherOptions options;
      options.encode = delta.options;
      publishers.emplace_back(delta.table, host_snapshot(*delta.table, views(trained.back())), options);
    }
    tables.push_back(tables.front());
    for (std::size_t s = 0; s < tables.size(); ++s) alone.push_back(trained[source(s)]);
    for (std::size_t s = 0; s < tables.size(); ++s) {
      subscribers.emplace_back(tables[s], refs_to(*tables[s], live_views(alone[s])), SubscriberOptions{});
      for (const Bytes& tensor : alone[s]) all.push_back(tensor);
    }
  }
  std::size_t source(std::size_t stream) const { return stream == trained.size() ? 0 : stream; }

  std::vector<std::shared_ptr<const TensorTable>> tables;
  std::vector<TensorState> trained;  ///< By publisher.
  std::vector<Publisher> publishers;
  std::vector<TensorState> alone;  ///< By stream, what a subscriber of its own holds.
  std::vector<Subscriber> subscribers;
  TensorState all;  ///< What the joined subscriber on the host starts from.
};

/// Stages the records of all streams, one stream's next after another's.
void stage_all(SubscriberState& joined, const std::vector<Bytes>& headers,
               const std::vector<std::vector<Bytes>>& frames, const std::vector<Bytes>& commits) {
  for (std::size_t s = 0; s < headers.size(); ++s) joined.stage(s, headers[s]);
  std::size_t longest = 0;
  for (const auto& stream : frames) longest = std::max(longest, stream.size());
  for (std::size_t f = 0; f < longest; ++f) {
    for (std::size_t s = 0; s < frames.size(); ++s) {
      if (f < frames[s].size()) joined.stage(s, frames[s][f]);
    }
  }
  for (std::size_t s = 0; s < commits.size(); ++s) joined.stage(s, commits[s]);
  joined.verify();
}

/// Stages frames that lie in memory of the device, all at once.
void stage_on_device(SubscriberState& joined, const std::vector<Bytes>& headers,
                     const std::vector<std::vector<Bytes>>& frames, const std::vector<Bytes>& commits,
                     std::vector<SharedBytes>& memory) {
  for (std::size_t s = 0; s < headers.size(); ++s) joined.stage(s, headers[s]);
  std::vector<StreamRecords> records(frames.size());
  for (std::size_t s = 0; s < frames.size(); ++s) {
    records[s].stream = s;
    for (const Bytes& frame : frames[s]) {
      std::byte* const d_frame = memory.emplace_back(allocate_shared(frame.size())).get();
      std::memcpy(d_frame, frame.data(), frame.size());
      records[s].frames.push_back({d_frame, static_cast<std::uint32_t>(frame.size())});
    }
  }
  joined.stage_frames(records, nullptr);
  for (std::size_t s = 0; s < commits.size(); ++s) joined.stage(s, commits[s]);
  joined.verify();
}

class JoinedSubscribers : public DeviceCases {
 public:
  JoinedSubscribers() : DeviceCases(0.2) {}
};
INSTANTIATE_TEST_SUITE_P(Random, JoinedSubscribers, testing::Range(0, 4));

TEST_P(JoinedSubscribers, HoldWhatSubscribersOfTheirOwnHold) {
  for_cases(10, [](Random& random) {
    Received streams(random);
    const JoinedTables tables(streams.tables);
    TensorState host = streams.all;
    const std::vector<TensorRef> host_tensors = refs_to(tables.all(), live_views(host));
    DeviceState device(element_sizes(tables.all()), host, 0);
    std::vector<TensorRef> device_tensors;
    for (std::size_t t = 0; t < host.size(); ++t) device_tensors.push_back(ref_to(tables.all()[t], device[t], 0));
    SubscriberOptions options;
    options.threads = static_cast<int>(random.between(1, 3));
    SubscriberState joined(tables, host_tensors, options);
    SubscriberState on_device(tables, device_tensors, options, with_ordinal({}));
    std::vector<SharedBytes> memory;

    for (std::uint64_t version = 1; version <= 3; ++version) {
      std::vector<const Delta*> deltas;
      for (std::size_t p = 0; p < streams.publishers.size(); ++p) {
        change_randomly(random, *streams.tables[p], streams.trained[p]);
        deltas.push_back(&streams.publishers[p].publish());
      }
      deltas.push_back(deltas.front());
      std::vector<Bytes> headers;
      std::vector<std::vector<Bytes>> frames;
      std::vector<Bytes> commits;
      for (const Delta* const delta : deltas) {
        headers.push_back(delta->header);
        frames.push_back(delta->frames);
        commits.push_back(delta->commit);
      }
      // One bit of one frame is wrong: nobody takes anything, for the reason for which the stream's own would not.
      const std::size_t bad = random.below(frames.size());
      if (!frames[bad].empty()) {
        std::vector<std::vector<Bytes>> damaged = frames;
        Bytes& frame = damaged[bad][random.below(damaged[bad].size())];
        frame[random.between(64, frame.size() - 1)] ^= std::byte{16};
        Delta wrong = *deltas[bad];
        wrong.frames = damaged[bad];
        const ErrorCode expected = code_of([&] { streams.subscribers[bad].stage(wrong); });
        EXPECT_EQ(code_of([&] { stage_all(joined, headers, damaged, commits); }), expected);
        EXPECT_EQ(code_of([&] { stage_all(on_device, headers, damaged, commits); }), expected);
        EXPECT_EQ(code_of([&] { stage_on_device(on_device, headers, damaged, commits, memory); }), expected);
        EXPECT_FALSE(joined.ready());
        EXPECT_FALSE(on_device.ready());
        joined.discard();
        on_device.discard();
        streams.subscribers[bad].discard();
      }
      stage_all(joined, headers, frames, commits);
      random.chance(0.5) ? stage_all(on_device, headers, frames, commits)
                         : stage_on_device(on_device, headers, frames, commits, memory);
      ASSERT_TRUE(joined.ready());
      ASSERT_TRUE(on_device.ready());
      const std::vector<ApplyReport> reports = joined.apply();
      EXPECT_EQ(on_device.apply().size(), reports.size());
      const bool keep = random.chance(0.6);
      if (!keep) {
        joined.undo_last();
        on_device.undo_last();
      }
      std::size_t t = 0;
      for (std::size_t s = 0; s < streams.tables.size(); ++s) {
        SCOPED_TRACE(testing::Message() << "stream " << s << ", version " << version);
        Subscriber& own = streams.subscribers[s];
        own.stage(*deltas[s]);
        EXPECT_EQ(own.apply().changed, reports[s].changed);
        if (!keep) own.undo_last();
        EXPECT_EQ(joined.digest(s), own.digest());
        EXPECT_EQ(on_device.digest(s), own.digest());
        for (const Bytes& tensor : streams.alone[s]) {
          EXPECT_TRUE(host[t] == tensor) << "tensor " << t;
          EXPECT_TRUE(device.bytes(t) == tensor) << "tensor " << t;
          ++t;
        }
      }
      EXPECT_EQ(joined.version(), streams.subscribers.front().version());
      joined.audit();
      on_device.audit();
      for (Publisher& publisher : streams.publishers) keep ? publisher.commit(version) : publisher.abort(version);
      if (testing::Test::HasFailure()) return;
    }
  });
}

TEST(SubscriberState, TakesTheFramesOfAllStreamsAtOnce) {
  if (!device_present()) GTEST_SKIP() << "no device";
  const auto table = std::make_shared<const TensorTable>(std::vector<TensorSpec>{{"t", DType::kBF16, {100}}});
  DeviceState device({2, 2}, TensorState(2, Bytes(200)), 0);
  SubscriberState joined(JoinedTables({table, table}),
                         {ref_to((*table)[0], device[0], 0), ref_to((*table)[0], device[1], 0)}, {});
  TensorState weights(1, Bytes(200));
  Publisher publisher(table, host_snapshot(*table, views(weights)), {});
  weights[0][8] = std::byte{1};
  const Delta& delta = publisher.publish();
  for (std::size_t s = 0; s < 2; ++s) joined.stage(s, delta.header);
  const SharedBytes memory(allocate_shared(delta.frames[0].size()));
  std::memcpy(memory.get(), delta.frames[0].data(), delta.frames[0].size());
  const DeviceRecord frame{memory.get(), static_cast<std::uint32_t>(delta.frames[0].size())};
  expect_error(ErrorCode::kUsage, [&] { joined.stage_frames({{0, {frame}}}, nullptr); }, {"stream 1"});
  expect_error(ErrorCode::kUsage, [&] { joined.stage_frames({{0, {frame}}, {0, {frame}}}, nullptr); }, {"twice"});
  expect_error(ErrorCode::kUsage, [&] { joined.stage_frames({{0, {frame}}, {2, {frame}}}, nullptr); }, {"stream 2"});
  memory.get()[0] ^= std::byte{1};
  expect_error(ErrorCode::kCorrupt,
               [&] {
                 joined.stage_frames({{0, {frame}}, {1, {frame}}}, nullptr);
               },
               {"stream 0, tensors from 't', frame 0"});
  memory.get()[0] ^= std::byte{1};
  joined.stage_frames({{0, {frame}}, {1, {frame}}}, nullptr);
  for (std::size_t s = 0; s < 2; ++s) joined.stage(s, delta.commit);
  joined.verify();
#if defined(SPARSECAST_CUDA_EMULATION)
  emulation::capture_streams(true);
  expect_error(ErrorCode::kUsage, [&] { joined.apply(); }, {"captured"});
  emulation::capture_streams(false);
#endif
  joined.apply();
  EXPECT_EQ(device.bytes(0), weights[0]);
  EXPECT_EQ(device.bytes(1), weights[0]);
}

}  // namespace
}  // namespace sparsecast::test
