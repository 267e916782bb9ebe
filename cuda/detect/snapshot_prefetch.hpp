// SPDX-License-Identifier: Apache-2.0
#pragma once

// Copies a snapshot in pinned host memory to the device in chunks: chunk c + 1 is copied on a separate stream while the
// kernels work on chunk c.
//
//     copies:   0 | 1 | . 2 | . 3        each into the buffer of its number modulo 2,
//     kernels:      0 | 1   | 2          once the kernels of the chunk before last have left it

#include <array>
#include <vector>

#include "cuda/common/device_memory.hpp"
#include "cuda/common/device_stream.hpp"
#include "cuda/common/streams.hpp"
#include "cuda/common/tile_plan.hpp"

namespace sparsecast::cuda {

/// Copies a snapshot in pinned host memory to the device, chunk by chunk, into two buffers in turn, while kernels work
/// on the previous chunk.
class SnapshotPrefetch {
 public:
  /// Allocates the buffers, uploads the tables of this object, and waits for the upload. `plan` must outlive this
  /// object. The `old` pointers of its tensors must point to the snapshots on the host; the constructor sets the `old`
  /// pointers of its tiles to the copies on the device.
  SnapshotPrefetch(TilePlan& plan, const HostWait& host);

  /// Starts copying chunks `first` and `first` + 1, once the work that is already enqueued on `stream` has ended.
  void begin(std::uint32_t first, cudaStream_t stream);
  /// Makes later work on `stream` wait until chunk number `chunk` has been copied. Returns the list of tensors that the
  /// kernels of this chunk must use as Pipeline::tensors.
  const TensorEntry* enter(std::uint32_t chunk, cudaStream_t stream);
  /// Starts copying chunk `chunk` + 2 into the buffer of chunk `chunk`, once the work that is already enqueued on
  /// `stream` has ended. Must be called when all kernels of chunk `chunk` have been enqueued there.
  void leave(std::uint32_t chunk, cudaStream_t stream);

 private:
  /// One copy from the host to a buffer: consecutive sections of one tensor.
  struct SectionCopy {
    const std::byte* h_from = nullptr;
    std::uint64_t offset = 0;  ///< Offset in the chunk's buffer, in bytes.
    std::uint64_t bytes = 0;
  };
  struct ChunkCopy {
    std::size_t piece_begin = 0;
    std::size_t piece_end = 0;
    std::size_t entries = 0;  ///< Index in entries_ of the chunk's first tensor.
    std::uint32_t first_tensor = 0;
  };
  struct ChunkBuffer {
    DeviceMemory memory;
    Event loaded;
    Event left;
  };

  std::uint64_t lay_out(std::uint32_t chunk);
  void place(std::uint32_t chunk);
  void load(std::uint32_t chunk);

  TilePlan& plan_;
  std::vector<ChunkCopy> chunks_;
  std::vector<SectionCopy> pieces_;
  /// For each chunk, the tensors that it covers, with `old` pointing into the chunk's buffer.
  std::vector<TensorEntry> entries_;
  DeviceMemory d_entries_;
  Stream copies_;
  Event ready_;
  std::array<ChunkBuffer, 2> buffers_;
};

}  // namespace sparsecast::cuda
