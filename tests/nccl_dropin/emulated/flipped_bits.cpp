// SPDX-License-Identifier: Apache-2.0

// Bits that flip in the slots of the drop-in: no rank takes wrong bytes without an error.

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "cuda/backend/device_detector.hpp"
#include "nccl_dropin/emulated/device_nccl.hpp"
#include "nccl_dropin/emulated/group.hpp"
#include "support/random.hpp"

namespace sparsecast::test {
namespace {

constexpr int kRanks = 3;
constexpr std::size_t kSize = 1 << 16;
constexpr std::size_t kChanged = 30'000;  ///< A byte that the last broadcast changes.

/// What the last broadcast does where the bit has flipped: changes nothing, another bit, that very bit, or nothing at
/// all in the whole buffer.
enum class Where { kInWhatStays, kInWhatChanges, kAsItChanges, kInAnEqualBuffer };
using Case = std::tuple<Memory, int, Where>;

/// Returns the first byte of what the rank takes for the bytes of the last broadcast.
std::byte* base_of(Memory memory, int rank) {
  dropin::Slot& slot = *slots_of_thread().back();
  if (rank != 0) return static_cast<std::byte*>(slot.memory.get());
  Detector& detector = slot.sender->detector();
  const TensorRef snapshot = memory == Memory::kDevice ? dynamic_cast<DeviceDetector&>(detector).state().front()
                                                       : dynamic_cast<TileDetector&>(detector).snapshot().front();
  return snapshot.data;
}

class FlippedBit : public testing::TestWithParam<Case> {};

TEST_P(FlippedBit, IsAnErrorOnAllRanks) {
  const auto& [memory, victim, where] = GetParam();
  Random random(11);
  Bytes first(kSize);
  for (std::byte& byte : first) byte = static_cast<std::byte>(random.next());
  Bytes second = first;
  for (std::size_t i = 0; i < kSize; i += 400) second[i] ^= std::byte{2};  // kChanged, too.
  Bytes third = second;
  if (where != Where::kInAnEqualBuffer) third[kChanged] ^= std::byte{1};
  const std::size_t flipped = where == Where::kInWhatChanges || where == Where::kAsItChanges ? kChanged : 20'001;
  const std::byte bit{where == Where::kAsItChanges ? std::uint8_t{1} : std::uint8_t{64}};

  const Counted counted = run_ranks(memory, kRanks, [&, victim = victim, memory = memory](Rank& rank) {
    EXPECT_EQ(rank.broadcast(first), ncclSuccess);
    EXPECT_EQ(rank.broadcast(second), ncclSuccess);
    if (rank.rank == victim) base_of(memory, rank.rank)[flipped] ^= bit;
    // Wrong bytes with success are a failure here.
    const ncclResult_t result = rank.broadcast(third);
    if (rank.rank == victim) {
      EXPECT_EQ(result, ncclInternalError);
      EXPECT_EQ(rank.broadcast(third), ncclInternalError);
      EXPECT_EQ(rank.kept_error(), ncclInternalError);
    } else {
      EXPECT_TRUE(result == ncclSuccess || result == ncclRemoteError) << result;
      EXPECT_EQ(rank.broadcast(third), ncclRemoteError);
      EXPECT_EQ(rank.kept_error(), ncclRemoteError);
    }
  });
  EXPECT_GE(counted.sparse, kRanks);
}

std::string name_of(const testing::TestParamInfo<Case>& made) {
  const auto [memory, victim, where] = made.param;
  const char* const places[] = {"what_stays", "what_changes", "just_that_change", "an_equal_buffer"};
  return std::string(memory == Memory::kDevice ? "device_" : "host_") + (victim == 0 ? "root_" : "receiver_") +
         places[static_cast<int>(where)];
}

INSTANTIATE_TEST_SUITE_P(Everywhere, FlippedBit,
                         testing::Combine(testing::Values(Memory::kDevice, Memory::kHost), testing::Values(0, 1),
                                          testing::Values(Where::kInWhatStays, Where::kInWhatChanges,
                                                          Where::kAsItChanges, Where::kInAnEqualBuffer)),
                         name_of);

}  // namespace
}  // namespace sparsecast::test
