// SPDX-License-Identifier: Apache-2.0
#ifdef SPARSECAST_HAVE_NCCL

#include "transport/nccl/round_scene.hpp"

#include "tests/support/fake_device.hpp"

namespace sparsecast::test {
namespace {

using namespace std::chrono_literals;

TEST_F(NcclRound, HeadsAndFramesOfAnySizeArriveFromAnySource) {
  run(3, [&](NcclTransport& channel) {
    std::uint64_t seed = 1;
    for (const std::size_t head : {std::size_t{0}, std::size_t{200}, kTableHeadBytes, kTableHeadBytes + 1}) {
      for (const std::size_t bytes : {0, 1, 5000, 70000}) {
        for (int source = 0; source < 3; ++source, seed += 2) {
          RoundOfRank round;
          round.add(channel, source, seed, head, bytes);
          round.run(in(20s));
          round.expect_all();
          EXPECT_EQ(channel.control().agree(channel.rank(), 0, in(20s)), 2);
        }
      }
    }
  });
}

TEST_F(NcclRound, AnyNumberOfTransfersIsTwoGroupsAndTwoWaits) {
  constexpr int kRanks = 4;
  run_channels(kRanks, [&](int rank, RoundChannels& channels) {
    std::uint64_t seed = 1;
    for (const int count : {1, 4, 16}) {
      NcclTransport& all = *channels[0];
      all.control().agree(0, 0, in(20s));
      const int groups = fake_.counts.groups;
      const int broadcasts = fake_.counts.broadcasts;
      const int waits = fake_.counts.host_waits;
      all.control().agree(0, 0, in(20s));
      RoundOfRank round;
      for (int i = 0; i < count; ++i, seed += 2) {
        NcclTransport& channel = *channels[static_cast<std::size_t>(i % 3)];
        round.add(channel, i / 3 % channel.size(), seed, 300, 4000 + 100 * seed);
      }
      round.run(in(20s));
      round.expect_all();
      all.control().agree(0, 0, in(20s));
      if (rank == 0) {
        EXPECT_EQ(fake_.counts.groups - groups, 2 * kRanks);
        EXPECT_EQ(fake_.counts.broadcasts - broadcasts, 2 * count * kRanks);
        EXPECT_EQ(fake_.counts.host_waits - waits, 2 * kRanks);
      }
      all.control().agree(0, 0, in(20s));
    }
  });
}

TEST_F(NcclRound, LongHeadsTakeOneGroupMoreForAll) {
  run_channels(2, [&](int rank, RoundChannels& channels) {
    NcclTransport& all = *channels[0];
    const int groups = fake_.counts.groups;
    all.control().agree(0, 0, in(20s));
    RoundOfRank round;
    round.add(all, 0, 1, 30000, 100);
    round.add(all, 1, 3, 10, 200);
    round.add(all, 1, 5, 50000, 0);
    round.run(in(20s));
    round.expect_all();
    all.control().agree(0, 0, in(20s));
    if (rank == 0) {
      EXPECT_EQ(fake_.counts.groups - groups, 2 * 3);
    }
    all.control().agree(0, 0, in(20s));
  });
}

TEST_F(NcclRound, ARankThatNamesNoMemoryTakesPartAllTheSame) {
  run(3, [&](NcclTransport& channel) {
    int allocated = 0;
    for (int turn = 0; turn < 3; ++turn) {
      RoundOfRank round;
      round.add(channel, 0, 1, 50, 30000);
      round.add(channel, 1, 3, 50, 40000);
      round.exchange(in(20s));
      if (channel.rank() == 2) {
        broadcast_frames(round.transfers, in(20s));
      } else {
        round.broadcast(in(20s));
        round.expect_all();
      }
      channel.control().agree(0, 0, in(20s));
      if (turn == 0) allocated = fake_.counts.allocated;
      EXPECT_EQ(fake_.counts.allocated, allocated);  // It is kept.
      channel.control().agree(0, 0, in(20s));
    }
  });
}

TEST_F(NcclRound, ASourceWithAnErrorTellsItAndTheOthersGoOn) {
  run(3, [&](NcclTransport& channel) {
    RoundOfRank round;
    round.add(channel, 0, 1, 50, 3000);
    round.add(channel, 1, 3, 50, 4000);
    if (channel.rank() == 0) round.transfers[0].error = static_cast<int>(ErrorCode::kWrongBase);
    round.exchange(in(20s));
    EXPECT_EQ(round.transfers[0].error, static_cast<int>(ErrorCode::kWrongBase));
    EXPECT_EQ(round.transfers[0].bytes, 0U);
    EXPECT_TRUE(round.transfers[0].head.empty());
    round.broadcast(in(20s));
    RoundOfRank expected;
    expected.add(channel, channel.rank(), 3, 50, 4000);
    EXPECT_EQ(round.transfers[1].head, expected.transfers[0].head);
    EXPECT_EQ(channel.control().agree(0, 0, in(20s)), 0);
  });
}

TEST_F(NcclRound, AHeadThatIsTooLongIsTheSourcesErrorAndTheChannelLives) {
  run(2, [&](NcclTransport& channel) {
    FrameTransfer transfer;
    transfer.channel = channel.frames();
    if (channel.rank() == 0) {
      transfer.head.resize(FrameTransfer::kMaxHeadBytes + 1);
      expect_error(ErrorCode::kUsage, [&] { exchange_heads({&transfer, 1}, in(20s)); }, {"16777217"});
    } else {
      exchange_heads({&transfer, 1}, in(20s));
    }
    EXPECT_EQ(transfer.error, static_cast<int>(ErrorCode::kUsage));
    broadcast_frames({&transfer, 1}, in(20s));
    EXPECT_EQ(channel.control().agree(4, 0, in(20s)), 4);
  });
  EXPECT_EQ(fake_.counts.aborts + fake_.counts.revokes, 0);
}

/// Cuts a range of `bytes` into pieces with gaps, which lie in `memory`.
std::vector<FramePiece> pieces_of(std::vector<Bytes>& memory, const Bytes& range, bool sending, int devices) {
  std::vector<FramePiece> pieces;
  const std::size_t sizes[] = {1, 700, 12000, 3, 25000, 9000};
  memory.resize(std::size(sizes));
  std::uint64_t at = 5;
  for (std::size_t p = 0; p < std::size(sizes); ++p) {
    memory[p].resize(sizes[p]);
    if (sending) std::copy_n(range.begin() + static_cast<std::ptrdiff_t>(at), sizes[p], memory[p].begin());
    const bool on_device = devices == 2 || (devices == 1 && p % 2 == 0);
    pieces.push_back({memory[p].data(), at, sizes[p], on_device});
    at += sizes[p] + 50;
  }
  return pieces;
}

TEST_F(NcclRound, PiecesOnHostAndDeviceAreGatheredAndHandedOver) {
  for (int devices = 0; devices < 3; ++devices) {  // Pieces on the host; some on the device; all there.
    run(2, [&](NcclTransport& channel) {
      const Bytes range = seeded_bytes(7, 50000);
      FrameTransfer transfer;
      transfer.channel = channel.frames();
      transfer.bytes = range.size();
      std::vector<Bytes> memory;
      transfer.pieces = pieces_of(memory, range, channel.rank() == 0, channel.rank() == 0 ? devices : 2 - devices);
      broadcast_frames({&transfer, 1}, in(20s));
      for (const FramePiece& piece : transfer.pieces) {
        EXPECT_TRUE(std::equal(piece.data, piece.data + piece.bytes, range.data() + piece.offset)) << piece.offset;
      }
      channel.control().agree(0, 0, in(20s));  // Nobody's memory goes while others receive.
    });
  }
}

TEST_F(NcclRound, FramesFollowTheirProducersStreamAndGoBeforeTheConsumers) {
  run(2, [&](NcclTransport& channel) {
    DeviceApi& device = fake_.device();
    void* const stream = device.create_stream();
    const Bytes sent = seeded_bytes(7, 5000);
    Bytes frames(sent.size());
    Bytes consumed(sent.size());
    FrameTransfer transfer;
    transfer.channel = channel.frames();
    transfer.bytes = sent.size();
    transfer.d_frames = frames.data();
    transfer.cuda_stream = static_cast<CUstream_st*>(stream);
    // The receiver's stream still reads the memory into which the frames go.
    FakeDevice::enqueue(stream, [&] {
      std::this_thread::sleep_for(100ms);
      channel.rank() == 0 ? frames = sent : consumed = frames;
    });
    broadcast_frames({&transfer, 1}, in(20s));
    EXPECT_EQ(frames, sent);
    if (channel.rank() == 1) {
      EXPECT_EQ(consumed, Bytes(sent.size()));
    }
    channel.control().agree(0, 0, in(20s));
    device.destroy_stream(stream);
  });
}

TEST_F(NcclRound, AHeadTravelsWhateverTheRoomForIt) {
  for (const std::uint32_t room : {0U, 8U, 200U, FrameTransfer::kMostHeadRoom}) {
    for (const std::size_t length : {std::size_t{0}, std::size_t{7}, std::size_t{200}, std::size_t{201}}) {
      run(3, [&](NcclTransport& channel) {
        const Bytes head = seeded_bytes(7, length);
        FrameTransfer transfer;
        transfer.channel = channel.frames();
        transfer.head_room = room;
        if (channel.rank() == 0) transfer.head = head;
        exchange_heads({&transfer, 1}, in(20s));
        EXPECT_EQ(transfer.head, head) << "room " << room << ", head " << length;
        channel.control().agree(0, 0, in(20s));
      });
    }
  }
  run(2, [&](NcclTransport& channel) {
    FrameTransfer transfer;
    transfer.channel = channel.frames();
    for (const std::uint32_t room : {4U, FrameTransfer::kMostHeadRoom + 8}) {
      transfer.head_room = room;
      expect_error(ErrorCode::kUsage, [&] { exchange_heads({&transfer, 1}, in(20s)); }, {"room for"});
    }
  });
}

TEST_F(NcclRound, RanksThatAreAloneInAChannelSendNothing) {
  run_channels(1, [&](int, RoundChannels& channels) {
    RoundOfRank round;
    round.add(*channels[1], 0, 1, 50, 1000);
    round.run(in(20s));
    round.expect_all();
    exchange_heads({}, in(20s));
    broadcast_frames({}, in(20s));
  });
  EXPECT_EQ(fake_.counts.broadcasts, 0);
}

}  // namespace
}  // namespace sparsecast::test

#endif
