// SPDX-License-Identifier: Apache-2.0
#pragma once

// Ranks on the fake NCCL, each a thread with one channel.

#ifdef SPARSECAST_HAVE_NCCL

#include <gtest/gtest.h>

#include <random>

#include "tests/support/fake_nccl.hpp"
#include "transport/tcp/meeting.hpp"

namespace sparsecast::test {

inline constexpr std::uint64_t kChannelStaging = 10000;

inline NcclOptions channel_options(int device) {
  NcclOptions options;
  options.device = device;
  options.staging_bytes = kChannelStaging;
  return options;
}

inline std::vector<Bytes> random_records(unsigned seed, std::size_t count, std::size_t longest) {
  std::mt19937 random(seed);
  std::vector<Bytes> records(count);
  for (Bytes& record : records) {
    record.resize(random() % (longest + 1));
    for (std::byte& b : record) b = static_cast<std::byte>(random());
  }
  return records;
}

class NcclChannel : public testing::Test {
 protected:
  using Channel = NcclGroup;

  void SetUp() override {
    if (!rendezvous_available()) GTEST_SKIP() << "the ranks meet over TCP; built without libsodium";
  }
  void TearDown() override {
    EXPECT_EQ(fake_.misuses(), "");
    if (HasFailure()) return;
    EXPECT_EQ(fake_.counts.mem_allocs, fake_.counts.mem_frees);
    EXPECT_EQ(fake_.living(), 0);
  }

  std::unique_ptr<Channel> open(std::shared_ptr<Rendezvous> group,
                                std::chrono::milliseconds time = std::chrono::seconds(20)) {
    const int device = group->rank();
    return Channel::form(fake_.runtime(), std::move(group), channel_options(device), nullptr, in(time));
  }
  /// Every rank forms the channel on its own device.
  void run(int size, const std::function<void(Channel&)>& body) {
    Meeting meeting(meeting_options(size));
    meeting.run([&](std::shared_ptr<Rendezvous> group) { body(*open(std::move(group))); });
  }
  /// The place where the ranks of a later generation meet.
  static Meeting later(int size, std::uint32_t generation) {
    RendezvousOptions options = meeting_options(size);
    options.generation = generation;
    return Meeting(options);
  }
  /// Broadcasts from rank 0.
  static void sync(Channel& channel) {
    const std::vector<Bytes> expected = random_records(3, 5, 3 * kChannelStaging);
    std::vector<Bytes> records = channel.rank() == 0 ? expected : std::vector<Bytes>{};
    channel.broadcast(records, 0, in(std::chrono::seconds(20)));
    EXPECT_EQ(records, expected);
  }

  /// Ranks 0..size-1 sync once, `lost`, which is not 0, dies when the others wait for it in the next broadcast, the
  /// survivors reform and sync again.
  void lose_a_rank(int size, int lost, const std::string& formed_by) {
    using namespace std::chrono_literals;
    // A table and a piece from each rank, and then the table of each, and a piece of the source.
    const int broadcasts = fake_.counts.broadcasts + 2 * size + size;
    Meeting first(meeting_options(size));
    Meeting second = later(size - 1, 1);
    first.run([&](std::shared_ptr<Rendezvous> group) {
      const int rank = group->rank();
      const auto channel = open(std::move(group));
      std::vector<Bytes> records = {Bytes(100)};
      channel->broadcast(records, 0, in(20s));
      if (rank == lost) {
        while (!fake_.settled_after(broadcasts)) std::this_thread::sleep_for(1ms);
        fake_.kill(rank);
        return channel->abort("it is killed");
      }
      expect_error(ErrorCode::kPeerFailed, [&] { channel->broadcast(records, 0, in(60s)); });
      const auto survivors = channel->reform(second.meet(rank < lost ? rank : rank - 1), in(20s));
      EXPECT_EQ(survivors->report().formed_by, formed_by);
      EXPECT_EQ(survivors->size(), size - 1);
      sync(*survivors);
      expect_error(ErrorCode::kPeerFailed, [&] { channel->broadcast(records, 0, in(1s)); });
    });
    EXPECT_EQ(fake_.counts.allocated, 0);
  }
  /// Ranks 0 and 1 form a channel, which rank 2 joins.
  void add_a_rank(const std::string& formed_by) {
    using namespace std::chrono_literals;
    Meeting first(meeting_options(2));
    Meeting second = later(3, 1);
    const auto check = [&](Channel& channel) {
      EXPECT_EQ(channel.report().formed_by, formed_by);
      sync(channel);
    };
    std::jthread joiner([&] { check(*open(second.meet(2))); });
    first.run([&](std::shared_ptr<Rendezvous> group) {
      const int rank = group->rank();
      const auto channel = open(std::move(group));
      check(*channel->reform(second.meet(rank), in(20s)));
    });
    joiner.join();
    EXPECT_EQ(fake_.counts.allocated, 0);
  }

  FakeNccl fake_;
};

}  // namespace sparsecast::test

#endif
