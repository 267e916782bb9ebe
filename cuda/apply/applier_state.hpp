// SPDX-License-Identifier: Apache-2.0
#pragma once

// State of a DeviceApplier. stage_frames.cpp has the members that check received frames, device_applier.cpp those that
// read or write the live tensors.

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "core/trace.hpp"
#include "cuda/apply/apply_launchers.hpp"
#include "cuda/apply/device_applier.hpp"
#include "cuda/apply/live_tensors.hpp"
#include "cuda/apply/nan_expansion.hpp"
#include "cuda/common/device_memory.hpp"
#include "cuda/common/device_stream.hpp"

namespace sparsecast::cuda {

class DeviceApplier::State {
 public:
  State(JoinedTables tables, const std::vector<TensorRef>& tensors, const DeviceApplierOptions& options);

  void stage(std::span<const StreamFrames> deltas, cudaStream_t stream);
  void enqueue(Pass pass, cudaStream_t stream);
  void apply(Direction direction, cudaStream_t stream);
  void restore(cudaStream_t stream);
  void roll_back(cudaStream_t stream);
  std::vector<StateDigest> digest_changes();
  std::vector<StateDigest> digests(std::size_t first, std::size_t count, cudaStream_t stream);
  void require_mapped(std::size_t first, std::size_t count) const {
    cuda::require_mapped(table(), live_, first, count);
  }
  void require_mapped() const { require_mapped(0, live_.size()); }
  StateDigest prepare_expansion(Direction direction, cudaStream_t stream);
  void expand(std::size_t tensor, void* d_out, cudaStream_t stream);
  const std::vector<std::size_t>& expansion_tensors() const noexcept { return expansion_.tensors(); }
  const std::vector<FrameHeader>& headers() const noexcept { return headers_; }

 private:
  void load_kernels();
  void upload_tables();
  void upload_frames();
  void list_streams(std::span<const StreamFrames> deltas);
  void inspect(std::span<const StreamFrames> deltas);
  void check_headers(std::span<const StreamFrames> deltas);
  FrameHeader check_header_at(const StreamFrames& delta, std::uint32_t sequence, std::size_t frame) const;
  std::string context_of(const StreamFrames& delta, std::uint32_t sequence) const;
  void reserve_entries();
  void reserve_context();
  void validate(std::span<const StreamFrames> deltas);
  [[noreturn]] void explain(std::uint64_t input_error, std::span<const StreamFrames> deltas);
  void decode_again(const BlockRef& block, std::size_t tensor);
  void require_staged() const {
    if (!staged_) throw Error(ErrorCode::kUsage, "no delta is staged");
  }
  /// Throws Error{kCorrupt} if a frame that stage() had accepted was found damaged by the last apply() whose work has
  /// been waited for.
  void require_unchanged() const {
    if (changed_since_) throw Error(ErrorCode::kCorrupt, "the frames have changed since they were staged");
  }
  void require_invertible(Direction direction) const {
    if (direction == Direction::kForward || !any_raw_) return;
    throw Error(ErrorCode::kUsage, "a raw block cannot be inverted without the bits it replaced");
  }
  bool keeps_replaced() const {
    return options_.keep_replaced == KeepReplaced::kAll || (options_.keep_replaced == KeepReplaced::kRaw && any_raw_);
  }
  std::uint64_t bytes_of(std::size_t first, std::size_t count) const {
    std::uint64_t bytes = 0;
    for (std::size_t t = first; t < first + count; ++t) bytes += table()[t].bytes();
    return bytes;
  }
  const TensorTable& table() const noexcept { return tables_.all(); }
  ReceivedStream* streams() const { return h_streams_.as<ReceivedStream>(); }
  ReceivedFrame* frames() const { return h_frames_.as<ReceivedFrame>(); }
  void tell(const char* step) const {
    if (options_.after_step) options_.after_step(step);
  }
  const ReceiveControl& decision() const { return *h_control_.as<ReceiveControl>(); }
  void read_control() {
    copy_async(h_control_.as(), control_.as(), sizeof(ReceiveControl), cudaMemcpyDeviceToHost, device_stream_.stream);
  }

  const JoinedTables tables_;
  DeviceApplierOptions options_;
  TilePlan plan_;
  std::vector<LiveTensor> live_;
  Received received_;
  DeviceStream device_stream_;
  HostWait host_;
  NanExpansion expansion_;
  std::vector<FrameHeader> headers_;
  TracePayload of_delta_;
  std::uint64_t changed_ = 0;  ///< Total number of changed elements in the staged deltas.
  bool staged_ = false;
  /// True if a staged frame has changed since it was validated; known once the last apply() has been waited for.
  bool changed_since_ = false;
  bool any_raw_ = false;      ///< True if a staged delta has `raw` words.
  bool any_context_ = false;  ///< True if a staged delta may have `context` positions.
  bool replaced_ = false;     ///< True if the undo record holds the bits that the last apply() replaced.

  DeviceMemory tensors_, views_, sections_, sums_, changes_, control_;
  DeviceMemory streams_, frames_, inspections_, frame_undo_, group_begins_, blocks_, cta_blocks_, undo_;
  DeviceMemory entry_positions_, entry_words_, context_changes_;
  PinnedMemory h_streams_, h_frames_, h_inspections_, h_control_, h_sums_, h_changes_;
};

}  // namespace sparsecast::cuda
