#pragma once

// Frames that came through the host, in device memory: appended to segments, which are pinned on the host and mirrored
// on the device, and used again by the next delta.

#include <algorithm>
#include <cstring>
#include <vector>

#include "cuda/common/device_memory.hpp"
#include "sparsecast/device.hpp"

namespace sparsecast {

class FrameStore {
 public:
  explicit FrameStore(std::uint64_t segment_bytes) : segment_bytes_(segment_bytes) {}

  /// Copies the record, a multiple of 8 bytes, and enqueues its way to the device.
  DeviceRecord put(ConstBytes record, cudaStream_t stream) {
    while (current_ < segments_.size() && segments_[current_].d_memory.bytes() - used_ < record.size()) {
      ++current_;
      used_ = 0;
    }
    if (current_ == segments_.size()) {
      const std::uint64_t bytes = std::max<std::uint64_t>(record.size(), segment_bytes_);
      cuda::PinnedMemory h_memory(bytes);
      segments_.push_back({std::move(h_memory), cuda::DeviceMemory(bytes)});
    }
    const Segment& segment = segments_[current_];
    std::byte* const h_record = segment.h_memory.as() + used_;
    std::byte* const d_record = segment.d_memory.as() + used_;
    std::memcpy(h_record, record.data(), record.size());
    cuda::copy_async(d_record, h_record, record.size(), cudaMemcpyHostToDevice, stream);
    used_ += record.size();
    return {d_record, static_cast<std::uint32_t>(record.size())};
  }

  /// The frames so far are not needed any more, and none of them is on its way still.
  void clear() noexcept { current_ = used_ = 0; }

 private:
  struct Segment {
    cuda::PinnedMemory h_memory;
    cuda::DeviceMemory d_memory;
  };

  std::uint64_t segment_bytes_;
  std::vector<Segment> segments_;
  std::size_t current_ = 0;
  std::uint64_t used_ = 0;  ///< Of the current segment.
};

}  // namespace sparsecast
