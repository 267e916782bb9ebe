// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "codec/record_layout.hpp"
#include "core/trace.hpp"
#include "cuda/common/encode_launchers.hpp"
#include "cuda/encode/encoder_state.hpp"
#include "sparsecast/digest.hpp"

namespace sparsecast::cuda {

/// Computes the header of the frame with index `index` in the count table.
DeviceFrame DeviceEncoder::State::complete_frame(const DeltaHeader& header, std::uint32_t sequence,
                                                 std::uint32_t index) {
  const FrameEntry& entry = frame_counts()[index];
  DeviceFrame frame;
  frame.header.delta_id = header.delta_id;
  frame.header.sequence = sequence;
  frame.header.groups = entry.groups;
  frame.header.blocks = entry.blocks;
  frame.header.stored_bytes = entry.body_bytes;
  frame.header.body_bytes = entry.body_bytes;
  frame.header.changed = entry.changed;
  frame.header.version = header.version;
  Bytes fixed(layout::kFramePrefix);
  layout::put_frame_fields(fixed, frame.header);
  frame.header.checksum =
      layout::frame_checksum(ConstBytes(fixed).first(layout::kFramePrefix - 8), {{entry.sum_lo, entry.sum_hi}});
  layout::put(fixed, layout::kFramePrefix - 8, frame.header.checksum);
  std::ranges::copy(fixed, h_headers_.as() + std::size_t{index} * layout::kFramePrefix);
  frame.d_record = frame_memory_.as() + entry.offset;
  frame.record_bytes = static_cast<std::uint32_t>(layout::pad8(layout::kFramePrefix + entry.body_bytes));
  return frame;
}

std::vector<DeviceFrames> DeviceEncoder::State::complete_frames(std::span<const DeltaHeader> headers) {
  const TraceRange<"device_encode.seal"> range({.bytes = counts().frames_bytes});
  std::vector<DeviceFrames> out(streams());
  std::uint32_t index = 0;
  for (std::size_t s = 0; s < out.size(); ++s) {
    DeviceFrames& stream = out[s];
    stream.digest_change = {{stream_counts()[s].lo, stream_counts()[s].hi}};
    stream.commit.delta_id = headers[s].delta_id;
    stream.commit.version = headers[s].version;
    Bytes checksums;
    for (; index < counts().frames && frame_counts()[index].stream == s; ++index) {
      const DeviceFrame frame = complete_frame(headers[s], stream.commit.frames++, index);
      stream.commit.changed += frame.header.changed;
      stream.commit.frame_bytes += frame.record_bytes;
      const std::byte* const checksum = h_headers_.as() + (std::size_t{index} + 1) * layout::kFramePrefix - 8;
      checksums.insert(checksums.end(), checksum, checksum + 8);
      stream.frames.push_back(frame);
    }
    stream.commit.frames_hash = xxh3_64(checksums);
  }
  if (index == 0) return out;
  copy_async(headers_.as(), h_headers_.as(), std::size_t{index} * layout::kFramePrefix, cudaMemcpyHostToDevice,
             device_stream_.stream);
  launch_place_headers(pipeline_, headers_.as<std::uint64_t>(), counts().frames, device_stream_);
  return out;
}

}  // namespace sparsecast::cuda
