// SPDX-License-Identifier: Apache-2.0
#pragma once

// State of a DeviceEncoder. complete_frames.cpp makes records of the frames; all other members are in
// device_encoder.cpp.

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "cuda/common/device_memory.hpp"
#include "cuda/common/device_stream.hpp"
#include "cuda/common/graph.hpp"
#include "cuda/detect/snapshot_prefetch.hpp"
#include "cuda/encode/chunk_sets.hpp"
#include "cuda/encode/context_memory.hpp"
#include "cuda/encode/device_encoder.hpp"
#include "cuda/encode/encoder_tensors.hpp"

namespace sparsecast::cuda {

class DeviceEncoder::State {
 public:
  /// Makes the state from `plan`, in which enter_tensors() must have set the pointers of the tensors.
  State(const JoinedTables& tables, DetectSource source, TilePlan plan, bool refresh, const EncodeOptions& options,
        const DeviceEncoderOptions& device);

  /// Declares that the old bits are in pinned host memory and must be copied to the device chunk by chunk.
  void prefetch_old_bits() {
    prefetch_ = std::make_unique<SnapshotPrefetch>(plan_, host_);
    encode_stream_.reset();
    upload_tables();
  }

  void start(cudaStream_t stream);
  std::vector<DeviceFrames> finish(std::span<const DeltaHeader> headers);
  std::vector<DeviceFrames> without_context(std::span<const DeltaHeader> headers);

 private:
  void upload_tables();
  void load_kernels();
  void enqueue_delta();
  void enqueue_chunks(std::uint32_t first);
  void enqueue_encode(const Pipeline& pipeline, const Chunk& chunk, const DeviceStream& stream);
  Pipeline chosen() const;
  void enqueue_frames(const Pipeline& pipeline);
  void enqueue_assembly(const Pipeline& pipeline);
  void enqueue_counts();
  void tell(const char* step) const {
    if (device_.after_step) device_.after_step(step);
  }
  void wait_for_counts();
  void grow_arena();
  bool grow_frames();
  bool grow_entries();
  std::vector<DeviceFrames> complete_frames(std::span<const DeltaHeader> headers);
  DeviceFrame complete_frame(const DeltaHeader& header, std::uint32_t sequence, std::uint32_t index);

  std::size_t streams() const { return plan_.streams.size() - 1; }
  /// Returns the size in bytes of the count table without the frame entries at its end. Each delta begins by setting
  /// this part to zero.
  std::uint64_t head_bytes() const { return sizeof(Control) + streams() * sizeof(StreamSums); }
  const Control& counts() const { return *h_counts_.as<Control>(); }
  const StreamSums* stream_counts() const {
    return reinterpret_cast<const StreamSums*>(h_counts_.as() + sizeof(Control));
  }
  const FrameEntry* frame_counts() const { return reinterpret_cast<const FrameEntry*>(h_counts_.as() + head_bytes()); }

  DetectSource source_;
  DeviceEncoderOptions device_;
  TilePlan plan_;
  Pipeline pipeline_;
  DeviceStream device_stream_;
  HostWait host_;
  std::uint64_t table_bytes_ = 0;
  std::uint64_t table_elements_ = 0;
  std::unique_ptr<SnapshotPrefetch> prefetch_;
  bool cleared_ = false;  ///< True if the whole count table has been set to zero once.
  bool started_ = false;
  bool steady_ = false;  ///< True if no memory had to grow for the last delta.
  Graph graph_;
  /// Stream on which encode runs; null if detect and encode run on the same stream.
  std::unique_ptr<Stream> encode_stream_;
  /// Events that are recorded after detect and after encode of the last chunk of each of the two sets of tables.
  std::array<Event, 2> detected_, encoded_;

  DeviceMemory tensors_, streams_, sections_, tiles_, views_, scratch_;
  ChunkSets sets_;
  DeviceMemory records_, order_, section_blocks_, section_sums_;
  bool context_ = false;  ///< True if deltas may have `context` blocks.
  ContextMemory context_memory_;
  ContextTables contexts_;
  DeviceMemory counts_;  ///< The count table: a Control, the StreamSums of the streams, and the FrameEntries.
  DeviceMemory arena_, retired_arena_, frame_memory_, headers_;
  PinnedMemory h_counts_, h_headers_;
};

}  // namespace sparsecast::cuda
