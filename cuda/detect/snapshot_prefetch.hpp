#pragma once

// Old bits in pinned host memory, on their way to the kernels: chunk c + 1 is copied on a stream of its own while the
// kernels work on chunk c.
//
//     copies:   0 | 1 | . 2 | . 3        each into the buffer of its number modulo 2,
//     kernels:      0 | 1   | 2          once the kernels of the chunk before last have left it

#include <array>
#include <vector>

#include "cuda/common/device_memory.hpp"
#include "cuda/common/streams.hpp"
#include "cuda/common/tile_plan.hpp"

namespace sparsecast::cuda {

class SnapshotPrefetch {
 public:
  /// `plan`, which outlives this, has its pointers: `old` are the snapshots on the host.
  explicit SnapshotPrefetch(const TilePlan& plan);

  /// Once, in the order of the stream that the kernels run on.
  void upload_tables(cudaStream_t stream);
  /// Copies begin with chunk `first`, behind what is on `stream` now.
  void begin(std::uint32_t first, cudaStream_t stream);
  /// What follows on `stream` waits for the chunk's copy. Tensors as its kernels are to see them.
  const TensorEntry* enter(std::uint32_t chunk, cudaStream_t stream);
  /// The chunk's kernels are on `stream`.
  void leave(std::uint32_t chunk, cudaStream_t stream);

 private:
  /// Consecutive sections of one tensor.
  struct Piece {
    const std::byte* h_from = nullptr;
    std::uint64_t offset = 0;  ///< In the buffer.
    std::uint64_t bytes = 0;
  };
  struct ChunkCopy {
    std::size_t piece_begin = 0;
    std::size_t piece_end = 0;
    std::size_t entries = 0;  ///< Its first tensor's in entries_.
    std::uint32_t first_tensor = 0;
  };
  struct Buffer {
    DeviceMemory memory;
    Event loaded;
    Event left;
  };

  std::uint64_t lay_out(std::uint32_t chunk);
  void place(std::uint32_t chunk);
  void load(std::uint32_t chunk);

  const TilePlan& plan_;
  std::vector<ChunkCopy> chunks_;
  std::vector<Piece> pieces_;
  std::vector<TensorEntry> entries_;  ///< A range for each chunk: its tensors, with `old` in its buffer.
  DeviceMemory d_entries_;
  Stream copies_;
  Event ready_;
  std::array<Buffer, 2> buffers_;
};

}  // namespace sparsecast::cuda
