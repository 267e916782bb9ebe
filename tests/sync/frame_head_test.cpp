// SPDX-License-Identifier: Apache-2.0

#include "sync/frame_head.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/expect_error.hpp"

namespace sparsecast::test {
namespace {

/// Deltas whose frames lie in `memory` at multiples of `alignment`, each behind the one before.
std::vector<DeviceDelta> deltas_in(const std::byte* memory, std::uint64_t alignment) {
  const std::vector<std::vector<std::uint32_t>> sizes = {{64, 256, 1000}, {}, {520, 72}};
  std::vector<DeviceDelta> deltas(sizes.size());
  std::uint64_t at = 0;
  for (std::size_t s = 0; s < sizes.size(); ++s) {
    deltas[s].header = Bytes(128 + 8 * s, std::byte{1});
    deltas[s].commit = Bytes(96, static_cast<std::byte>(s));
    for (const std::uint32_t size : sizes[s]) {
      deltas[s].frames.push_back({memory + at, size});
      at = (at + size + alignment - 1) / alignment * alignment;
    }
  }
  return deltas;
}

FrameHead head_of_deltas(const std::vector<DeviceDelta>& deltas) {
  FrameHead head;
  for (const DeviceDelta& delta : deltas) head.add(delta);
  return head;
}

const Bytes kFrameMemory(4096);

TEST(FrameHead, SeveralStreamsComeBack) {
  const std::vector<DeviceDelta> deltas = deltas_in(kFrameMemory.data(), kFrameAlignment);
  const FrameHead head = head_of_deltas(deltas);
  EXPECT_EQ(head.bytes, 256U + 256U + 1024U + 768U + 72U);
  const Bytes packed = head.pack();
  EXPECT_EQ(packed.size() % 8, 0U);
  const FrameHead parsed = parse_frame_head(packed, head.bytes);
  EXPECT_EQ(parsed.bytes, head.bytes);
  ASSERT_EQ(parsed.streams.size(), deltas.size());
  for (std::size_t s = 0; s < deltas.size(); ++s) {
    EXPECT_EQ(parsed.streams[s].header, deltas[s].header);
    EXPECT_EQ(parsed.streams[s].commit, deltas[s].commit);
    const std::vector<DeviceRecord> frames = parsed.streams[s].frames_in(kFrameMemory.data());
    ASSERT_EQ(frames.size(), deltas[s].frames.size());
    for (std::size_t f = 0; f < frames.size(); ++f) {
      EXPECT_EQ(frames[f].d_record, deltas[s].frames[f].d_record);
      EXPECT_EQ(frames[f].record_bytes, deltas[s].frames[f].record_bytes);
    }
  }
  EXPECT_TRUE(parse_frame_head(FrameHead{}.pack(), 0).streams.empty());
}

TEST(FrameHead, ADeltaOnTheHostHasTheHeadOfTheSameDeltaOnADevice) {
  const std::vector<DeviceDelta> deltas = deltas_in(kFrameMemory.data(), kFrameAlignment);
  FrameHead head;
  for (const DeviceDelta& on_device : deltas) {
    Delta delta;
    delta.header = on_device.header;
    delta.commit = on_device.commit;
    for (const DeviceRecord& frame : on_device.frames) delta.frames.emplace_back(frame.record_bytes);
    head.add(delta);
  }
  EXPECT_EQ(head.pack(), head_of_deltas(deltas).pack());
}

TEST(FrameHead, FramesAreSentFromWhereTheyLieOnlyIfThatIsTheRange) {
  const auto range_of = [](const std::vector<DeviceDelta>& deltas) {
    std::vector<const DeviceDelta*> pointers;
    for (const DeviceDelta& delta : deltas) pointers.push_back(&delta);
    return range_of_frames(head_of_deltas(deltas), pointers);
  };
  std::vector<DeviceDelta> deltas = deltas_in(kFrameMemory.data(), kFrameAlignment);
  EXPECT_EQ(range_of(deltas), kFrameMemory.data());
  std::swap(deltas[0], deltas[2]);
  EXPECT_EQ(range_of(deltas), nullptr);
  EXPECT_EQ(range_of(deltas_in(kFrameMemory.data(), 8)), nullptr);
  EXPECT_EQ(range_of({}), nullptr);
}

TEST(FrameHead, EveryCutAndEveryLengthIsChecked) {
  const FrameHead head = head_of_deltas(deltas_in(kFrameMemory.data(), kFrameAlignment));
  const Bytes packed = head.pack();
  const auto expect_corrupt = [&](ConstBytes bytes) {
    expect_error(ErrorCode::kCorrupt, [&] { parse_frame_head(bytes, head.bytes); });
  };
  for (std::size_t size = 0; size < packed.size(); ++size) expect_corrupt(ConstBytes(packed).first(size));
  Bytes longer = packed;
  longer.resize(packed.size() + 8);
  expect_corrupt(longer);
  // Number of streams, a zero; lengths of the first stream, a zero.
  for (std::size_t at = 0; at < 24; at += 4) {
    for (const std::uint32_t value : {1U, 7U, 64U, 0x7FFFFFFFU, 0xFFFFFFFFU}) {
      Bytes forged = packed;
      std::memcpy(forged.data() + at, &value, sizeof(value));
      expect_corrupt(forged);
    }
  }
  // Sizes of the first stream's frames, and the zeros behind them.
  for (std::size_t at = 24 + 128 + 96; at < 24 + 128 + 96 + 16; at += 4) {
    for (const std::uint32_t value : {1U, 8U, 65U, 0xFFFFFFF8U}) {
      Bytes forged = packed;
      std::memcpy(forged.data() + at, &value, sizeof(value));
      expect_corrupt(forged);
    }
  }
  expect_error(ErrorCode::kCorrupt, [&] { parse_frame_head(packed, head.bytes + 8); }, {"were announced as"});
}

}  // namespace
}  // namespace sparsecast::test
