// SPDX-License-Identifier: Apache-2.0

// Records over a control channel: any sizes, any source, whole syncs, and what becomes of failures.

#include "sparsecast/tcp_transport.hpp"

#include <atomic>
#include <cstring>

#include "support/random.hpp"
#include "sync/sync_group.hpp"
#include "tests/support/forwarding_control.hpp"
#include "transport/message_plan.hpp"
#include "transport/tcp/meeting.hpp"

namespace sparsecast::test {
namespace {

using namespace std::chrono_literals;

/// A channel whose broadcasts may be altered on the way to this rank.
class AlteredControl final : public ForwardingControl {
 public:
  using Alter = std::function<void(int call, Bytes& bytes)>;
  AlteredControl(std::shared_ptr<ControlChannel> inner, Alter alter)
      : ForwardingControl(std::move(inner)), alter_(std::move(alter)) {}

  Bytes broadcast(std::span<const std::byte> own, Deadline deadline) override {
    Bytes bytes = ForwardingControl::broadcast(own, deadline);
    if (rank() != 0) alter_(++calls_, bytes);
    return bytes;
  }

 private:
  Alter alter_;
  int calls_ = 0;
};

std::vector<Bytes> random_records(std::uint64_t seed, std::size_t count, std::size_t longest) {
  Random random(seed);
  std::vector<Bytes> records(count);
  for (Bytes& record : records) {
    record.resize(random.below(longest + 1));
    for (std::byte& b : record) b = static_cast<std::byte>(random.below(256));
  }
  return records;
}

class TcpTransportTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!rendezvous_available()) GTEST_SKIP() << "built without libsodium";
  }

  /// Every rank with its transport, in pieces of `piece_bytes`.
  static void run(int size, std::uint64_t piece_bytes, const std::function<void(Transport&)>& body) {
    RendezvousOptions options = meeting_options(size);
    options.max_blob_bytes = piece_bytes;
    Meeting meeting(options);
    meeting.run([&](const std::shared_ptr<Rendezvous>& group) { body(*make_tcp_transport(group)); });
  }
};

TEST_F(TcpTransportTest, RecordsOfAnySizeArriveFromAnySource) {
  SCOPED_TRACE(seed_note());
  run(3, 1000, [](Transport& transport) {
    std::uint64_t seed = run_seed();
    for (const auto& [count, longest] :
         std::vector<std::pair<std::size_t, std::size_t>>{{0, 0}, {1, 0}, {5, 100}, {7, 9000}, {1000, 40}}) {
      for (int source = 0; source < 3; ++source, ++seed) {
        const std::vector<Bytes> expected = random_records(seed, count, longest);
        std::vector<Bytes> records = transport.rank() == source ? expected : std::vector<Bytes>(2, Bytes(3));
        transport.broadcast(records, source, in(20s));
        EXPECT_EQ(records, expected) << count << ' ' << longest;
        EXPECT_EQ(transport.control().agree(transport.rank(), 0, in(20s)), 2);
      }
    }
  });
}

TEST_F(TcpTransportTest, AloneItKeepsWhatItHas) {
  run(1, 1000, [](Transport& transport) {
    std::vector<Bytes> records = {Bytes(5)};
    transport.broadcast(records, 0, in(1s));
    EXPECT_EQ(records, std::vector<Bytes>{Bytes(5)});
    EXPECT_EQ(transport.control().agree(4, 0, in(1s)), 4);
  });
}

TEST_F(TcpTransportTest, SyncsLeaveAllReceiversBitIdentical) {
  SCOPED_TRACE(seed_note());
  SyncGroup group(GroupOptions{});
  run(group.options.ranks, 4096, [&](Transport& transport) {
    for (std::uint64_t version = 1; version <= 4; ++version) {
      if (transport.rank() == 0) group.model.train();
      const SyncReport report = transport.rank() == 0
                                    ? sync_send(*group.publisher, transport, 20s)
                                    : sync_receive(group.subscriber(transport.rank()), transport, 0, 20s);
      EXPECT_EQ(report.version, version);
      EXPECT_GT(report.changed, 0U);
    }
  });
  group.committed = group.model.weights();
  for (int rank = 1; rank < group.options.ranks; ++rank) {
    EXPECT_EQ(group.wrong(rank), 0U);
    EXPECT_EQ(group.subscriber(rank).digest(), group.publisher->digest());
  }
}

TEST_F(TcpTransportTest, ARankThatIsGoneFailsTheOthersAndLeavesTheOldVersion) {
  SyncGroup group(GroupOptions{});
  run(group.options.ranks, 4096, [&](Transport& transport) {
    if (transport.rank() == 2) return;
    if (transport.rank() == 0) group.model.train();
    expect_error(ErrorCode::kPeerFailed, [&] {
      transport.rank() == 0 ? sync_send(*group.publisher, transport, 30s)
                            : sync_receive(group.subscriber(1), transport, 0, 30s);
    });
    std::vector<Bytes> records;
    expect_error(ErrorCode::kPeerFailed, [&] { transport.broadcast(records, 0, in(30s)); }, {"broken"});
  });
  EXPECT_EQ(group.publisher->version(), 0U);
  EXPECT_EQ(group.subscriber(1).version(), 0U);
  EXPECT_FALSE(group.subscriber(1).dirty());
}

TEST_F(TcpTransportTest, ASilentSourceIsATimeoutByTheDeadline) {
  std::atomic<int> failed = 0;
  run(3, 4096, [&](Transport& transport) {
    if (transport.rank() == 0) {
      while (failed < 2) std::this_thread::sleep_for(5ms);
      return;
    }
    std::vector<Bytes> records;
    expect_error(ErrorCode::kTimeout, [&] { transport.broadcast(records, 0, in(300ms)); }, {"rank 0", "silent"});
    ++failed;
  });
}

TEST_F(TcpTransportTest, OverTheLimitsIsRefusedBeforeMemoryIsTaken) {
  Meeting meeting(meeting_options(2));
  meeting.run([](const std::shared_ptr<Rendezvous>& group) {
    TcpTransportOptions options;
    if (group->rank() == 1) options.max_bytes = 99;
    const auto transport = make_tcp_transport(group, options);
    std::vector<Bytes> records = {Bytes(100)};
    if (group->rank() == 0) {
      transport->broadcast(records, 0, in(20s));
      expect_error(ErrorCode::kPeerFailed, [&] { transport->control().agree(0, 0, in(20s)); },
                   {"over the limit of 99"});
    } else {
      expect_error(ErrorCode::kCorrupt, [&] { transport->broadcast(records, 0, in(20s)); }, {"over the limit of 99"});
      EXPECT_EQ(records, std::vector<Bytes>{Bytes(100)});
    }
  });
}

TEST_F(TcpTransportTest, AlteredTablesAndPiecesAreCorruptAndEveryRankLearnsIt) {
  const auto with = [](const std::string& words, const AlteredControl::Alter& alter) {
    SCOPED_TRACE(words);
    Meeting meeting(meeting_options(2));
    meeting.run([&](const std::shared_ptr<Rendezvous>& group) {
      const auto transport = make_tcp_transport(std::make_shared<AlteredControl>(group, alter));
      std::vector<Bytes> records(100, Bytes(10));
      if (group->rank() == 0) {
        transport->broadcast(records, 0, in(20s));
        expect_error(ErrorCode::kPeerFailed, [&] { transport->control().agree(0, 0, in(20s)); });
      } else {
        expect_error(ErrorCode::kCorrupt, [&] { transport->broadcast(records, 0, in(20s)); }, {words});
      }
    });
  };
  const auto word = [](std::size_t index, std::uint64_t value) {
    return [=](int call, Bytes& bytes) {
      if (call == 1) std::memcpy(bytes.data() + 8 * index, &value, sizeof(value));
    };
  };
  with("not with its mark", word(0, 1));
  with("over the limit", word(1, ~std::uint64_t{0}));
  with("over the limit", word(2, ~std::uint64_t{0}));
  with("announced", word(2, 999));
  with("announced", word(3, ~std::uint64_t{0}));
  with("opened a broadcast with 511 bytes", [](int call, Bytes& bytes) {
    if (call == 1) bytes.pop_back();
  });
  with("0 bytes where", [](int call, Bytes& bytes) {
    if (call == 2) bytes.clear();
  });
  with("where 1000 are left", [](int call, Bytes& bytes) {
    if (call == 3) bytes.push_back({});
  });
}

TEST_F(TcpTransportTest, WrongArgumentsAreUsage) {
  expect_error(ErrorCode::kUsage, [] { make_tcp_transport(nullptr); });
  run(1, 100, [](Transport& transport) {
    std::vector<Bytes> records;
    expect_error(ErrorCode::kUsage, [&] { transport.broadcast(records, 1, in(1s)); }, {"source 1 of 1"});
    expect_error(ErrorCode::kUsage, [&] { transport.broadcast(records, -1, in(1s)); });
    EXPECT_NO_THROW(transport.broadcast(records, 0, in(1s)));
  });
}

}  // namespace
}  // namespace sparsecast::test
