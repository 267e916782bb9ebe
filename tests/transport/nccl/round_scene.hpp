// SPDX-License-Identifier: Apache-2.0
#pragma once

// Ranks on the fake NCCL, each a thread with channels that are split from one another, and rounds over them.

#ifdef SPARSECAST_HAVE_NCCL

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/fake_nccl.hpp"
#include "tests/support/random.hpp"
#include "transport/nccl/nccl_frames.hpp"
#include "transport/tcp/meeting.hpp"

namespace sparsecast::test {

inline constexpr std::uint64_t kRoundStaging = 10000;

/// The channel of all ranks, that of the ranks of the same parity, and that of the lower or upper half.
using RoundChannels = std::vector<std::unique_ptr<NcclTransport>>;

class NcclRound : public testing::Test {
 protected:
  void SetUp() override {
    if (!rendezvous_available()) GTEST_SKIP() << "the ranks meet over TCP; built without libsodium";
  }
  void TearDown() override {
    EXPECT_EQ(fake_.misuses(), "");
    if (!HasFailure()) {
      EXPECT_EQ(fake_.counts.allocated, 0);
    }
  }

  std::unique_ptr<NcclTransport> open(const std::shared_ptr<Rendezvous>& control, std::uint64_t max_bytes = 1 << 30) {
    NcclOptions options;
    options.device = control->rank();
    options.staging_bytes = kRoundStaging;
    options.max_bytes = max_bytes;
    return std::make_unique<NcclTransport>(
        NcclGroup::form(fake_.runtime(), control, options, nullptr, in(std::chrono::seconds(20))));
  }
  /// Runs `body` on every rank, with a channel of all.
  void run(int size, const std::function<void(NcclTransport&)>& body) {
    Meeting meeting(meeting_options(size));
    meeting.run([&](const std::shared_ptr<Rendezvous>& control) { body(*open(control)); });
  }
  /// Runs `body` on every rank, with all its channels.
  void run_channels(int size, const std::function<void(int rank, RoundChannels&)>& body) {
    run(size, [&](NcclTransport& world) {
      const int rank = world.rank();
      RoundChannels channels;
      for (const int color : {0, rank % 2, rank < size / 2 ? 0 : 1}) {
        channels.push_back(world.split(color, rank, std::chrono::seconds(20)));
      }
      body(rank, channels);
    });
  }

  FakeNccl fake_;
};

/// Returns bytes that are equal on all ranks for the same seed.
inline Bytes seeded_bytes(std::uint64_t seed, std::size_t size) {
  Random random(seed);
  Bytes bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.below(256));
  return bytes;
}

/// A round of this rank, and the memory of its frames, which stands for device memory.
class RoundOfRank {
 public:
  /// Adds a transfer. `seed` says what its source sends, and must differ between the transfers of a channel.
  void add(NcclTransport& channel, int source, std::uint64_t seed, std::size_t head_bytes, std::size_t bytes) {
    FrameTransfer transfer;
    transfer.channel = channel.frames();
    transfer.source = source;
    heads_.push_back(seeded_bytes(seed, head_bytes));
    sent_.push_back(seeded_bytes(seed + 1, bytes));
    frames_.emplace_back();
    sends_.push_back(channel.rank() == source);
    if (sends_.back()) {
      transfer.head = heads_.back();
      transfer.bytes = bytes;
      frames_.back() = sent_.back();
      transfer.d_frames = frames_.back().data();
    }
    transfers.push_back(std::move(transfer));
  }
  void exchange(Deadline deadline) { exchange_heads(transfers, deadline); }
  /// Gives receivers their memory, and brings the frames there.
  void broadcast(Deadline deadline) {
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      FrameTransfer& transfer = transfers[i];
      if (sends_[i]) continue;
      frames_[i].resize(transfer.bytes);
      transfer.d_frames = frames_[i].data();
    }
    broadcast_frames(transfers, deadline);
  }
  void run(Deadline deadline) {
    exchange(deadline);
    broadcast(deadline);
  }
  void expect_all() const {
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      EXPECT_EQ(transfers[i].error, 0);
      EXPECT_EQ(transfers[i].head, heads_[i]);
      EXPECT_EQ(frames_[i], sent_[i]);
    }
  }

  std::vector<FrameTransfer> transfers;

 private:
  std::vector<Bytes> heads_;   ///< What the sources send.
  std::vector<Bytes> sent_;    ///< As above.
  std::vector<Bytes> frames_;  ///< Of this rank.
  std::vector<bool> sends_;
};

}  // namespace sparsecast::test

#endif
