// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstring>

#include "cuda/apply/device_applier.hpp"
#include "cuda/backend/device_detector.hpp"

namespace sparsecast {
namespace {

using cuda::copy_async;

class DevicePublisherBackend final : public PublisherBackend {
 public:
  DevicePublisherBackend(const JoinedTables& tables, DeviceDetector& detector, const EncodeOptions& options)
      : tables_(tables),
        detector_(detector),
        context_(detector.context),
        abilities_(detector.abilities(options)),
        context_positions_(options.positions == PositionMode::kContext),
        encoder_(detector.make_encoder(tables, options)),
        applier_(tables, detector.state(), {.entry_bytes = 0, .deadline = context_.deadline()}) {}

  Abilities abilities() const noexcept override { return abilities_; }
  void require_usable() const override { static_cast<void>(context_.enter()); }

  std::vector<StateDigest> digests() override {
    const cuda::DeviceGuard guard = context_.enter();
    return tables_.sums(applier_.digests(0, tables_.all().size(), context_.stream()));
  }

  void encode(std::span<const DeltaHeader> headers, CUevent_st* weights_ready, const EncodedStreamSink& sink) override {
    if (failed_) {
      throw Error(ErrorCode::kDirty, "an earlier encode failed on the device; make a new publisher");
    }
    const cuda::DeviceGuard guard = context_.enter();
    if (weights_ready != nullptr) cuda::wait_behind(context_.stream(), weights_ready);
    failed_ = true;
    detector_.begin();
    encoder_.start(context_.stream());
    streams_ = encoder_.finish(headers);
    detector_.finish();
    failed_ = false;
    for (std::size_t s = 0; s < streams_.size(); ++s) sink(s, {streams_[s].commit, streams_[s].digest_change, {}});
  }

  /// Copies the frames of all streams to the host at once, because they are almost contiguous in memory.
  std::vector<std::vector<Bytes>> take_frames() override {
    const cuda::DeviceGuard guard = context_.enter();
    const std::byte* d_begin = nullptr;
    const std::byte* d_end = nullptr;
    for (const cuda::DeviceFrames& stream : streams_) {
      if (stream.frames.empty()) continue;
      if (d_begin == nullptr) d_begin = stream.frames.front().d_record;
      d_end = stream.frames.back().d_record + stream.frames.back().record_bytes;
    }
    const auto bytes = static_cast<std::uint64_t>(d_end - d_begin);
    cuda::reserve(h_frames_, bytes, "frames");
    copy_async(h_frames_.as(), d_begin, bytes, cudaMemcpyDeviceToHost, context_.stream());
    context_.wait("hand over the frames");
    std::vector<std::vector<Bytes>> out;
    for (const cuda::DeviceFrames& stream : streams_) {
      std::vector<Bytes>& frames = out.emplace_back();
      for (const cuda::DeviceFrame& frame : stream.frames) {
        const std::byte* const h_record = h_frames_.as() + (frame.d_record - d_begin);
        frames.emplace_back(h_record, h_record + frame.record_bytes);
      }
    }
    return out;
  }

  void apply_to_snapshot(const std::vector<Delta>& deltas, Direction direction) override {
    const cuda::DeviceGuard guard = context_.enter();
    if (context_positions_ && direction == Direction::kInverse) {
      // The snapshot already holds the new words, from which `context` blocks cannot be inverted.
      std::vector<DeltaHeader> headers;
      for (const Delta& delta : deltas) headers.push_back(delta.info);
      streams_ = encoder_.without_context(headers);
    }
    const std::vector<std::vector<DeviceRecord>> frames = frames_on_device();
    std::vector<cuda::StreamFrames> streams;
    for (std::size_t s = 0; s < deltas.size(); ++s) streams.push_back({s, &deltas[s].info, frames[s]});
    applier_.stage(streams, context_.stream());
    applier_.apply(direction, context_.stream());
    static_cast<void>(applier_.digest_changes());  // Waits and throws if not all was written.
  }
  void committed() override {}
  void aborted() override {
    const cuda::DeviceGuard guard = context_.enter();
    detector_.aborted();
  }

  bool on_device() const noexcept override { return true; }
  CUstream_st* cuda_stream() const noexcept override { return context_.stream(); }

  std::vector<std::vector<DeviceRecord>> frames_on_device() override {
    std::vector<std::vector<DeviceRecord>> out;
    for (const cuda::DeviceFrames& stream : streams_) {
      std::vector<DeviceRecord>& records = out.emplace_back();
      for (const cuda::DeviceFrame& frame : stream.frames) records.push_back({frame.d_record, frame.record_bytes});
    }
    return out;
  }

  std::vector<std::vector<DeviceRecord>> upload(const std::vector<Delta>& deltas) override {
    const cuda::DeviceGuard guard = context_.enter();
    std::uint64_t total = 0;
    for (const Delta& delta : deltas) {
      for (const Bytes& frame : delta.frames) total += frame.size();
    }
    cuda::reserve(h_frames_, total, "frames");
    cuda::reserve(uploaded_, total, "frames");
    std::vector<std::vector<DeviceRecord>> out;
    std::uint64_t at = 0;
    for (const Delta& delta : deltas) {
      std::vector<DeviceRecord>& records = out.emplace_back();
      for (const Bytes& frame : delta.frames) {
        std::memcpy(h_frames_.as() + at, frame.data(), frame.size());
        records.push_back({uploaded_.as() + at, static_cast<std::uint32_t>(frame.size())});
        at += frame.size();
      }
    }
    copy_async(uploaded_.as(), h_frames_.as(), total, cudaMemcpyHostToDevice, context_.stream());
    return out;
  }

 private:
  const JoinedTables& tables_;
  DeviceDetector& detector_;
  const DeviceContext& context_;
  const Abilities abilities_;
  const bool context_positions_;
  cuda::DeviceEncoder encoder_;
  cuda::DeviceApplier applier_;              ///< Works on the snapshot, or only reads the tensors if there is none.
  std::vector<cuda::DeviceFrames> streams_;  ///< Frames of the last encode.
  cuda::PinnedMemory h_frames_;
  cuda::DeviceMemory uploaded_;
  bool failed_ = false;
};

/// Compares the origins of two tables with the same hash, because the hash does not cover origins.
bool have_same_origins(const TensorTable& a, const TensorTable& b) {
  for (std::size_t t = 0; &a != &b && t < a.size(); ++t) {
    const DigestOrigin& ours = a.digest_origin(t);
    const DigestOrigin& theirs = b.digest_origin(t);
    if (ours.key != theirs.key || ours.first != theirs.first || ours.strides != theirs.strides) return false;
  }
  return true;
}

}  // namespace

std::unique_ptr<PublisherBackend> DeviceDetector::make_backend(const JoinedTables& tables,
                                                               const EncodeOptions& options) {
  check_encode_options(options, abilities(options).knows_old);
  if (options.positions == PositionMode::kContext && !has_all_old()) {
    throw Error(ErrorCode::kUnsupported,
                "a fused cast keeps no old weights, so its aborted deltas could not be joined: no 'context' positions");
  }
  if (table->hash() != tables.all().hash()) {
    throw Error(ErrorCode::kTableMismatch, "the detector was made for another tensor table");
  }
  if (!have_same_origins(*table, tables.all())) {
    throw Error(ErrorCode::kTableMismatch, "the detector was made for a table with other digest origins");
  }
  const cuda::DeviceGuard guard = context.enter();
  return std::make_unique<DevicePublisherBackend>(tables, *this, options);
}

}  // namespace sparsecast
