// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "codec/frame_reader.hpp"
#include "codec/record_layout.hpp"
#include "cuda/apply/device_applier.hpp"
#include "cuda/backend/device_detector.hpp"
#include "cuda/common/device_memory.hpp"
#include "memory/subscriber_backend.hpp"
#include "sparsecast/device.hpp"

namespace sparsecast {

// Device memory for frames that arrived on the host. Frames are appended to segments, each pinned on the host and
// mirrored on the device. The next delta reuses the segments.

class FrameStore {
 public:
  explicit FrameStore(std::uint64_t segment_bytes) : segment_bytes_(segment_bytes) {}

  /// Copies the record, whose size is a multiple of 8 bytes, to pinned memory and enqueues its copy to the device.
  DeviceRecord put(ConstBytes record, cudaStream_t stream) {
    while (current_ < segments_.size() && segments_[current_].d_memory.bytes() - used_ < record.size()) {
      ++current_;
      used_ = 0;
    }
    if (current_ == segments_.size()) {
      const std::uint64_t bytes = std::max<std::uint64_t>(record.size(), segment_bytes_);
      cuda::PinnedMemory h_memory(bytes, "frames");
      segments_.push_back({std::move(h_memory), cuda::DeviceMemory(bytes, "frames")});
    }
    const FrameSegment& segment = segments_[current_];
    std::byte* const h_record = segment.h_memory.as() + used_;
    std::byte* const d_record = segment.d_memory.as() + used_;
    std::memcpy(h_record, record.data(), record.size());
    cuda::copy_async(d_record, h_record, record.size(), cudaMemcpyHostToDevice, stream);
    used_ += record.size();
    return {d_record, static_cast<std::uint32_t>(record.size())};
  }

  /// Drops all frames. No copy of a frame to the device may still be running.
  void clear() noexcept { current_ = used_ = 0; }

 private:
  struct FrameSegment {
    cuda::PinnedMemory h_memory;
    cuda::DeviceMemory d_memory;
  };

  std::uint64_t segment_bytes_;
  std::vector<FrameSegment> segments_;
  std::size_t current_ = 0;
  std::uint64_t used_ = 0;  ///< Bytes used in the current segment.
};

namespace {

constexpr std::uint64_t kMostSegmentBytes = std::uint64_t{32} << 20;

/// Returns the frame without zstd compression, which the device cannot read.
Bytes without_compression(const FrameHeader& frame, ConstBytes record) {
  const Bytes body = decompress_exact(record.subspan(kFramePrefix, frame.stored_bytes), frame.body_bytes);
  FrameHeader plain = frame;
  plain.compressed = false;
  plain.stored_bytes = plain.body_bytes;
  Bytes out(layout::pad8(kFramePrefix + body.size()));
  layout::put_frame_fields(out, plain);
  std::memcpy(out.data() + kFramePrefix, body.data(), body.size());
  layout::put(out, kFramePrefix - 8, layout::frame_checksum(out));
  return out;
}

class DeviceSubscriberBackend final : public SubscriberBackend {
 public:
  /// Requires that the context's device is the calling thread's current device.
  DeviceSubscriberBackend(const JoinedTables& tables, const std::vector<TensorRef>& live, DeviceContext context)
      : tables_(tables),
        context_(std::move(context)),
        applier_(tables, live,
                 {.keep_replaced = cuda::KeepReplaced::kRaw,
                  .entry_bytes = context_.options().entry_bytes,
                  .deadline = context_.deadline()}),
        staged_(tables.streams()),
        store_(std::min(kMostSegmentBytes, tables.all().bytes() / 16 + kMinFrameCapacity)) {}

  void require_usable() const override {
    const cuda::DeviceGuard guard = context_.enter();
    applier_.require_mapped();
  }

  std::vector<StateDigest> digests(std::size_t first, std::size_t count) override {
    const cuda::DeviceGuard guard = context_.enter();
    return applier_.digests(first, count, context_.stream());
  }

  void begin() override {
    if (copying_) {
      const cuda::DeviceGuard guard = context_.enter();
      context_.wait("take the frames of a delta that was abandoned");
      copying_ = false;
    }
    discard();
    store_.clear();
  }

  void begin_stream(std::size_t stream, const DeltaHeader& header) override { staged_[stream] = {header, {}}; }

  void add(std::size_t stream, const FrameHeader& frame, ConstBytes record) override {
    const cuda::DeviceGuard guard = context_.enter();
    StagedDelta& delta = staged_[stream];
    try {
      require_frame_of(delta.header, frame, record.size());
      copying_ = true;
      const DeviceRecord staged = frame.compressed ? store_.put(without_compression(frame, record), context_.stream())
                                                   : store_.put(record, context_.stream());
      delta.frames.emplace(frame.sequence, staged);
    } catch (const Error& error) {
      throw error.within(fmt::format("frame {}", frame.sequence));
    }
  }

  void complete() override {
    if (on_device_) return;  // Frames on the device were verified when they arrived.
    const cuda::DeviceGuard guard = context_.enter();
    std::vector<DeltaHeader> headers(staged_.size());
    std::vector<std::vector<DeviceRecord>> records(staged_.size());
    std::vector<cuda::StreamFrames> deltas;
    for (std::size_t s = 0; s < staged_.size(); ++s) {
      headers[s] = staged_[s].header;
      // A frame within the capacity may need 7 more bytes of padding without compression.
      headers[s].frame_capacity += 7;
      for (const auto& [sequence, record] : staged_[s].frames) records[s].push_back(record);
      deltas.push_back({s, &headers[s], records[s]});
    }
    applier_.stage(deltas, context_.stream());
    copying_ = false;  // stage() has waited for the copies.
  }

  void discard() noexcept override {
    for (StagedDelta& delta : staged_) delta.frames.clear();
    on_device_ = false;
  }

  std::vector<StateDigest> apply(const ApplyOrder& order) override {
    const cuda::DeviceGuard guard = context_.enter();
    if (order.after != nullptr) cuda::wait_behind(context_.stream(), order.after);
    applier_.apply(Direction::kForward, context_.stream());
    if (order.written != nullptr) cuda::record(order.written, context_.stream());
    return applier_.digest_changes();
  }

  std::vector<StateDigest> roll_back() override {
    const cuda::DeviceGuard guard = context_.enter();
    applier_.roll_back(context_.stream());
    return applier_.digest_changes();
  }

  NanMasked prepare_nan_masked() override {
    const cuda::DeviceGuard guard = context_.enter();
    const StateDigest change = applier_.prepare_expansion(Direction::kForward, context_.stream());
    return {applier_.expansion_tensors(), change};
  }

  void load_nan_masked(const std::vector<std::size_t>& tensors, const NanMaskedLoader& load,
                       const ApplyOrder& order) override {
    const cuda::DeviceGuard guard = context_.enter();
    std::uint64_t largest = 1;
    for (const std::size_t t : tensors) largest = std::max(largest, tables_.all()[t].bytes());
    if (expanded_.bytes() < largest) cuda::reserve(expanded_, largest, "a NaN-masked tensor");
    if (order.after != nullptr) cuda::wait_behind(context_.stream(), order.after);
    for (const std::size_t t : tensors) {
      // The next tensor reuses the memory, after the work that the loader has enqueued.
      applier_.expand(t, expanded_.as(), context_.stream());
      load(t, expanded_.as(), context_.stream());
    }
    if (order.written != nullptr) cuda::record(order.written, context_.stream());
    context_.wait("load the tensors");
  }

  bool on_device() const noexcept override { return true; }

  std::vector<FrameHeader> add_on_device(const std::vector<StreamRecords>& streams, CUstream_st* ready) override {
    const cuda::DeviceGuard guard = context_.enter();
    if (ready != nullptr && ready != context_.stream()) {
      cuda::record(arrived_.get(), ready);
      cuda::wait_behind(context_.stream(), arrived_.get());
    }
    std::vector<cuda::StreamFrames> deltas;
    for (const StreamRecords& records : streams) {
      deltas.push_back({records.stream, &staged_[records.stream].header, records.frames});
    }
    applier_.stage(deltas, context_.stream());
    on_device_ = true;
    return applier_.frames();
  }

  std::byte* reserve(std::uint64_t bytes) override {
    const cuda::DeviceGuard guard = context_.enter();
    discard();
    cuda::reserve(reserved_, std::max<std::uint64_t>(bytes, 1), "frames");
    return reserved_.as();
  }

 private:
  /// Frames of one stream's delta by sequence number, unless all arrived at once.
  struct StagedDelta {
    DeltaHeader header;
    std::map<std::uint32_t, DeviceRecord> frames;
  };

  const JoinedTables tables_;
  const DeviceContext context_;
  cuda::DeviceApplier applier_;
  std::vector<StagedDelta> staged_;
  bool on_device_ = false;  ///< The frames arrived in device memory.
  FrameStore store_;
  bool copying_ = false;  ///< Copies out of the store's pinned memory may be running.
  cuda::DeviceMemory reserved_;
  cuda::DeviceMemory expanded_;  ///< Memory of the NaN-masked tensor that the loader copies.
  cuda::Event arrived_;
};

}  // namespace

std::unique_ptr<SubscriberBackend> make_device_subscriber_backend(const JoinedTables& tables,
                                                                  std::vector<TensorRef> live,
                                                                  const DeviceContext& context) {
  const cuda::DeviceGuard guard = context.enter();
  return std::make_unique<DeviceSubscriberBackend>(tables, live, context);
}

}  // namespace sparsecast
