// SPDX-License-Identifier: Apache-2.0
#include "sync/frame_channel.hpp"

#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

FrameChannel& channel_of(std::span<FrameTransfer> transfers, const char* phase) {
  FrameChannel* const channel = transfers.front().channel;
  if (channel == nullptr) throw Error(ErrorCode::kUsage, "a transfer without a channel", phase);
  return *channel;
}

}  // namespace

void exchange_heads(std::span<FrameTransfer> transfers, Deadline deadline) {
  if (!transfers.empty()) channel_of(transfers, "exchange_heads").exchange_heads(transfers, deadline);
}

void broadcast_frames(std::span<FrameTransfer> transfers, Deadline deadline) {
  if (!transfers.empty()) channel_of(transfers, "broadcast_frames").broadcast_frames(transfers, deadline);
}

}  // namespace sparsecast
