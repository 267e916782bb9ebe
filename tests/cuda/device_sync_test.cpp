// SPDX-License-Identifier: Apache-2.0

// Whole syncs between devices: the NCCL transport on the fake NCCL, publisher and subscribers on the emulated
// device, each rank a thread.

#if defined(SPARSECAST_CUDA_EMULATION) && defined(SPARSECAST_HAVE_NCCL)

#include <gtest/gtest.h>

#include "cuda_emulation/events.hpp"
#include "sparsecast/nccl_transport.hpp"
#include "sparsecast/sync.hpp"
#include "support/detectors.hpp"
#include "support/fake_nccl.hpp"
#include "support/random_delta.hpp"
#include "sync/frame_head.hpp"
#include "sync/vote.hpp"
#include "transport/tcp/meeting.hpp"

namespace sparsecast::test {
namespace {

using namespace std::chrono_literals;

constexpr int kRanks = 3;
constexpr std::uint64_t kElements = 300'000;

/// Rank 0's weights and the receivers', in memory of the emulated device.
struct Group {
  Group() {
    table = std::make_shared<const TensorTable>(
        std::vector<TensorSpec>{{"a", DType::kBF16, {kElements}}, {"b", DType::kF32, {100}}});
    Random random(3);
    state = random_state(random, *table);
    receivers.resize(kRanks - 1, state);
    PublisherOptions publishing;
    publishing.encode.values = ValueCodec::kXor;
    publisher.emplace(table, device_snapshot(table, {state[0].data(), state[1].data()}), publishing);
    for (TensorState& receiver : receivers) {
      subscribers.push_back(std::make_unique<Subscriber>(
          table, refs_to(*table, {receiver[0].data(), receiver[1].data()}, 0), SubscriberOptions{}));
    }
  }

  void train(std::uint64_t version) {
    for (std::uint64_t i = version; i < kElements; i += 40) state[0][2 * i] ^= std::byte{3};
    state[1][0] ^= std::byte{1};
  }

  /// `body` on each rank, over a channel of it.
  void run(FakeNccl& fake, const std::function<void(int rank, NcclTransport&)>& body) {
    Meeting meeting(meeting_options(kRanks));
    meeting.run([&](const std::shared_ptr<Rendezvous>& control) {
      NcclOptions options;
      options.device = control->rank();
      options.staging_bytes = 8192;  // Less than a frame, which does not pass through it.
      NcclTransport transport(NcclGroup::form(fake.runtime(), control, options, nullptr, in(20s)));
      body(control->rank(), transport);
    });
    EXPECT_EQ(fake.misuses(), "");
  }
  Subscriber& subscriber(int rank) { return *subscribers[static_cast<std::size_t>(rank - 1)]; }
  TensorState& receiver(int rank) { return receivers[static_cast<std::size_t>(rank - 1)]; }

  std::shared_ptr<const TensorTable> table;
  TensorState state;
  std::vector<TensorState> receivers;
  std::optional<Publisher> publisher;
  std::vector<std::unique_ptr<Subscriber>> subscribers;
};

#define NEEDS_RENDEZVOUS() \
  if (!rendezvous_available()) GTEST_SKIP() << "the ranks meet over TCP; built without libsodium"

TEST(DeviceSync, LeavesAllReceiversBitIdenticalVersionAfterVersion) {
  NEEDS_RENDEZVOUS();
  FakeNccl fake;
  Group group;
  group.run(fake, [&](int rank, NcclTransport& transport) {
    for (std::uint64_t version = 1; version <= 3; ++version) {
      if (rank == 0) {
        group.train(version);
        const emulation::TestEvent ready;
        const SyncReport report = sync_send(*group.publisher, transport, 20s, ready.get());
        EXPECT_EQ(report.version, version);
        EXPECT_EQ(ready.waits(), 1);
        EXPECT_GT(report.wire_bytes, 8192U);
      } else {
        const emulation::TestEvent after;
        const emulation::TestEvent written;
        const SyncReport report = sync_receive(group.subscriber(rank), transport, 0, 20s, {after.get(), written.get()});
        EXPECT_EQ(report.version, version);
        EXPECT_EQ(report.changed, kElements / 40 + 1);
        EXPECT_EQ(after.waits() + written.records(), 2);
      }
    }
  });
  for (int rank = 1; rank < kRanks; ++rank) {
    EXPECT_EQ(group.receiver(rank), group.state);
    EXPECT_EQ(group.subscriber(rank).digest(), group.publisher->digest());
  }
}

TEST(DeviceSync, AReceiverOfOtherBytesRefusesForAll) {
  NEEDS_RENDEZVOUS();
  FakeNccl fake;
  Group group;
  const TensorState before = group.receiver(1);
  // Rank 2 is made anew over a version of other bytes.
  group.receiver(2)[1][5] ^= std::byte{8};
  group.subscribers[1] = std::make_unique<Subscriber>(
      group.table, refs_to(*group.table, {group.receiver(2)[0].data(), group.receiver(2)[1].data()}, 0),
      SubscriberOptions{});
  group.train(1);
  group.run(fake, [&](int rank, NcclTransport& transport) {
    // The channel stays open after an input error: the same again on it.
    for (int attempt = 0; attempt < 2; ++attempt) {
      if (rank == 0) {
        expect_error(ErrorCode::kPeerFailed, [&] { sync_send(*group.publisher, transport, 20s); }, {"wrong_base"});
      } else {
        expect_error(rank == 2 ? ErrorCode::kWrongBase : ErrorCode::kPeerFailed,
                     [&] { sync_receive(group.subscriber(rank), transport, 0, 20s); });
      }
    }
  });
  EXPECT_EQ(group.publisher->version(), 0U);
  EXPECT_EQ(group.receiver(1), before);
  EXPECT_EQ(group.subscriber(1).version(), 0U);
}

TEST(DeviceSync, WhenOneCannotApplyTheOthersTakeTheirsBack) {
  NEEDS_RENDEZVOUS();
  FakeNccl fake;
  Group group;
  const TensorState before = group.receiver(1);
  group.receiver(2)[1][0] ^= std::byte{8};  // Under an element that the delta changes.
  const TensorState wrong = group.receiver(2);
  group.train(1);
  group.run(fake, [&](int rank, NcclTransport& transport) {
    if (rank == 0) {
      expect_error(ErrorCode::kPeerFailed, [&] { sync_send(*group.publisher, transport, 20s); }, {"digest_mismatch"});
    } else if (rank == 1) {
      expect_error(ErrorCode::kPeerFailed, [&] { sync_receive(group.subscriber(1), transport, 0, 20s); },
                   {"rolled back"});
    } else {
      expect_error(ErrorCode::kDigestMismatch, [&] { sync_receive(group.subscriber(2), transport, 0, 20s); });
    }
  });
  EXPECT_EQ(group.publisher->version(), 0U);
  EXPECT_EQ(group.receiver(1), before);
  EXPECT_EQ(group.receiver(2), wrong);
}

TEST(DeviceSync, EndsOnTheHostAndOnDevicesAreMixed) {
  NEEDS_RENDEZVOUS();
  FakeNccl fake;
  for (const bool source_on_host : {false, true}) {
    Group group;
    TensorState trained = group.state;
    TensorState host = group.state;
    group.subscribers[1] =
        std::make_unique<Subscriber>(group.table, refs_to(*group.table, live_views(host)), SubscriberOptions{});
    if (source_on_host)
      group.publisher.emplace(group.table, host_snapshot(*group.table, views(trained)), PublisherOptions{});
    EXPECT_EQ(group.publisher->on_device(), !source_on_host);
    for (std::uint64_t version = 1; version <= 2; ++version) {
      group.train(version);
      for (std::size_t t = 0; t < trained.size(); ++t) std::ranges::copy(group.state[t], trained[t].begin());
      group.run(fake, [&](int rank, NcclTransport& transport) {
        const SyncReport report = rank == 0 ? sync_send(*group.publisher, transport, 20s)
                                            : sync_receive(group.subscriber(rank), transport, 0, 20s);
        EXPECT_EQ(report.version, version);
      });
      EXPECT_EQ(group.receiver(1), group.state);
      EXPECT_EQ(host, group.state);
    }
  }
  EXPECT_EQ(fake.misuses(), "");
}

TEST(DeviceSync, IsTwoGroupsAndTwoWaitsOnEveryRank) {
  NEEDS_RENDEZVOUS();
  FakeNccl fake;
  Group group;
  group.run(fake, [&](int rank, NcclTransport& transport) {
    for (std::uint64_t version = 1; version <= 3; ++version) {
      if (rank == 0) group.train(version);
      transport.control().agree(0, 0, in(20s));
      const int groups = fake.counts.groups;
      const int broadcasts = fake.counts.broadcasts;
      const int waits = fake.counts.host_waits;
      transport.control().agree(0, 0, in(20s));
      if (rank == 0) {
        sync_send(*group.publisher, transport, 20s);
      } else {
        sync_receive(group.subscriber(rank), transport, 0, 20s);
      }
      transport.control().agree(0, 0, in(20s));
      if (rank == 0) {
        EXPECT_EQ(fake.counts.groups - groups, 2 * kRanks);
        EXPECT_EQ(fake.counts.broadcasts - broadcasts, 2 * kRanks);
        EXPECT_EQ(fake.counts.host_waits - waits, 2 * kRanks);
      }
      transport.control().agree(0, 0, in(20s));
    }
  });
}

TEST(DeviceSync, OtherBytesThanWereAnnouncedAreNotWrittenAnywhere) {
  NEEDS_RENDEZVOUS();
  FakeNccl fake;
  Group group;
  const TensorState before = group.receiver(1);
  group.train(1);
  group.run(fake, [&](int rank, NcclTransport& transport) {
    if (rank == 0) {
      const DeviceDelta& delta = group.publisher->publish_on_device();
      FrameHead head;
      head.add(delta);
      const std::uint64_t bytes = head.bytes;
      head.streams[0].sizes[0] = 64;
      FrameTransfer transfer;
      transfer.channel = transport.frames();
      transfer.head_room = static_cast<std::uint32_t>(expected_head_bytes(1));
      transfer.head = head.pack();
      transfer.bytes = bytes;
      transfer.d_frames = const_cast<std::byte*>(delta.frames[0].d_record);
      exchange_heads({&transfer, 1}, in(20s));
      broadcast_frames({&transfer, 1}, in(20s));
      expect_error(ErrorCode::kPeerFailed, [&] { require_all(ranks_of(transport.control(), 0), {}, in(20s)); },
                   {"rank 1 failed", "frames of 64 bytes were announced as", "[corrupt]"});
      group.publisher->abort(1);
    } else {
      expect_error(ErrorCode::kCorrupt, [&] { sync_receive(group.subscriber(rank), transport, 0, 20s); },
                   {"frames of 64 bytes were announced as"});
    }
  });
  EXPECT_EQ(group.receiver(1), before);
}

TEST(DeviceSync, ASourceThatCannotPublishLeavesNobodyWaiting) {
  NEEDS_RENDEZVOUS();
  FakeNccl fake;
  Group group;
  group.publisher->publish();  // Its fate is open, so that there is no next one.
  group.run(fake, [&](int rank, NcclTransport& transport) {
    if (rank == 0) {
      expect_error(ErrorCode::kUsage, [&] { sync_send(*group.publisher, transport, 20s); }, {"pending"});
    } else {
      expect_error(ErrorCode::kPeerFailed, [&] { sync_receive(group.subscriber(rank), transport, 0, 20s); },
                   {"nothing to send: usage"});
    }
  });
}

}  // namespace
}  // namespace sparsecast::test

#endif
