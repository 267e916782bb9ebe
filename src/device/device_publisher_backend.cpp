// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstring>

#include "cuda/apply/device_applier.hpp"
#include "device/device_detector.hpp"

namespace sparsecast {
namespace {

using cuda::copy_async;

class DevicePublisherBackend final : public PublisherBackend {
 public:
  DevicePublisherBackend(const TensorTable& table, DeviceDetector::Implementation& detector,
                         const EncodeOptions& options)
      : table_(table),
        detector_(detector),
        context_(detector.context),
        abilities_(detector.abilities(options)),
        encoder_(detector.make_encoder(options)),
        applier_(table, detector.state(), {.deadline = context_.deadline()}) {}

  Abilities abilities() const noexcept override { return abilities_; }

  StateDigest digest() override {
    const cuda::DeviceGuard guard = context_.enter();
    return sum(applier_.digests(0, table_.size(), context_.stream()));
  }

  EncodedFrames encode(const DeltaHeader& header, CUevent_st* weights_ready) override {
    if (failed_) {
      throw Error(ErrorCode::kDirty, "an earlier encode failed on the device; make a new publisher");
    }
    const cuda::DeviceGuard guard = context_.enter();
    if (weights_ready != nullptr) cuda::wait_behind(context_.stream(), weights_ready);
    failed_ = true;
    detector_.begin();
    encoder_.start(context_.stream());
    frames_ = encoder_.finish(header);
    detector_.finish();
    failed_ = false;
    return {frames_.commit, frames_.digest_change};
  }

  std::vector<Bytes> take_frames() override {
    const cuda::DeviceGuard guard = context_.enter();
    std::uint64_t total = 0;
    for (const cuda::DeviceFrame& frame : frames_.frames) total += frame.record_bytes;
    cuda::reserve(h_frames_, total);
    std::byte* h_record = h_frames_.as();
    for (const cuda::DeviceFrame& frame : frames_.frames) {
      copy_async(h_record, frame.d_record, frame.record_bytes, cudaMemcpyDeviceToHost, context_.stream());
      h_record += frame.record_bytes;
    }
    context_.wait("hand over the frames");
    std::vector<Bytes> out;
    h_record = h_frames_.as();
    for (const cuda::DeviceFrame& frame : frames_.frames) {
      out.emplace_back(h_record, h_record + frame.record_bytes);
      h_record += frame.record_bytes;
    }
    return out;
  }

  void apply_to_snapshot(const Delta& delta, Direction direction) override {
    const cuda::DeviceGuard guard = context_.enter();
    applier_.stage(delta.info, frames_on_device(), context_.stream());
    applier_.apply(direction, context_.stream());
    static_cast<void>(applier_.digest_changes());  // Verifies that all was written.
  }
  void committed() override {}
  void aborted() override {
    const cuda::DeviceGuard guard = context_.enter();
    detector_.aborted();
  }

  bool on_device() const noexcept override { return true; }
  CUstream_st* stream() const noexcept override { return context_.stream(); }

  std::vector<DeviceRecord> frames_on_device() override {
    std::vector<DeviceRecord> records;
    for (const cuda::DeviceFrame& frame : frames_.frames) records.push_back({frame.d_record, frame.record_bytes});
    return records;
  }

  std::vector<DeviceRecord> upload(const std::vector<Bytes>& frames) override {
    const cuda::DeviceGuard guard = context_.enter();
    std::uint64_t total = 0;
    for (const Bytes& frame : frames) total += frame.size();
    cuda::reserve(h_frames_, total);
    cuda::reserve(uploaded_, total);
    std::vector<DeviceRecord> records;
    std::uint64_t at = 0;
    for (const Bytes& frame : frames) {
      std::memcpy(h_frames_.as() + at, frame.data(), frame.size());
      records.push_back({uploaded_.as() + at, static_cast<std::uint32_t>(frame.size())});
      at += frame.size();
    }
    copy_async(uploaded_.as(), h_frames_.as(), total, cudaMemcpyHostToDevice, context_.stream());
    return records;
  }

 private:
  const TensorTable& table_;
  DeviceDetector::Implementation& detector_;
  const DeviceContext& context_;
  const Abilities abilities_;
  cuda::DeviceEncoder encoder_;
  cuda::DeviceApplier applier_;  ///< Over the snapshot, or only to read the tensors.
  cuda::DeviceFrames frames_;    ///< Frames of the last encode.
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

std::unique_ptr<PublisherBackend> make_device_publisher_backend(const TensorTable& table, DeviceDetector& detector,
                                                                const EncodeOptions& options) {
  DeviceDetector::Implementation& implementation = detector.implementation();
  check_encode_options(options, implementation.abilities(options).knows_old);
  if (implementation.table->hash() != table.hash()) {
    throw Error(ErrorCode::kTableMismatch, "the detector was made for another tensor table");
  }
  if (!have_same_origins(*implementation.table, table)) {
    throw Error(ErrorCode::kTableMismatch, "the detector was made for a table with other digest origins");
  }
  const cuda::DeviceGuard guard = implementation.context.enter();
  return std::make_unique<DevicePublisherBackend>(table, implementation, options);
}

}  // namespace sparsecast
