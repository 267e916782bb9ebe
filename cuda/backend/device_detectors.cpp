// SPDX-License-Identifier: Apache-2.0

// The detectors for device memory: with a snapshot in device memory (the library's or the caller's) or in pinned host
// memory, with the fused cast, and with the caller's mask.

#include <fmt/format.h>

#include "core/tensor_view.hpp"
#include "cuda/backend/device_detector.hpp"
#include "cuda/common/encode_launchers.hpp"
#include "cuda/common/tensor_memory.hpp"

namespace sparsecast {

using cuda::DeviceMemory;
using cuda::MemoryKind;
DeviceDetector::DeviceDetector(DeviceDetector::Origin origin)
    : table(std::move(origin.table)), context(std::move(origin.context)), chunk_bytes_(origin.chunk_bytes) {}

cuda::DeviceEncoderOptions DeviceDetector::encoder_options() const {
  cuda::DeviceEncoderOptions options;
  options.chunk_bytes = chunk_bytes_;
  options.deadline = context.deadline();
  return options;
}

namespace {

bool has_masters(const TensorTable& table, const std::vector<TensorRef>& live) {
  for (std::size_t t = 0; t < table.size(); ++t) {
    if (is_master(table[t], live[t].dtype)) return true;
  }
  return false;
}

/// Makes a `Kind` while its device is current.
template <class Kind, class... Pointers>
std::unique_ptr<Kind> make(DeviceDetector::Origin origin, Pointers&&... pointers) {
  const cuda::DeviceGuard guard = origin.context.enter();
  return std::make_unique<Kind>(std::move(origin), std::forward<Pointers>(pointers)...);
}

PublisherBackend::Abilities snapshot_abilities(const EncodeOptions& options) noexcept {
  return {.knows_old = true, .keeps_snapshot = true, .refreshes_in_pass = options.values != ValueCodec::kRaw};
}

StridedView contiguous_view(std::uint64_t elements) {
  constexpr std::int64_t kStep = 1;
  return make_strided_view({&elements, 1}, {&kStep, 1});
}

/// Copies contiguous tensors, or casts contiguous masters, to memory that the detector owns.
template <MemoryKind kKind>
void copy_tensors(const TensorTable& table, const std::vector<TensorRef>& live, const DeviceContext& context,
                  const cuda::TensorMemory<kKind>& copy) {
  constexpr cudaMemcpyKind kDirection =
      kKind == MemoryKind::kDevice ? cudaMemcpyDeviceToDevice : cudaMemcpyDeviceToHost;
  for (std::size_t t = 0; t < table.size(); ++t) {
    const TensorSpec& spec = table[t];
    if (spec.bytes() == 0) continue;
    if (is_master(spec, live[t].dtype)) {
      // The kernel can also write pinned host memory.
      cuda::launch_cast_masters(reinterpret_cast<const std::uint32_t*>(live[t].data),
                                reinterpret_cast<std::uint16_t*>(copy[t]), contiguous_view(spec.elements()),
                                spec.elements(), cuda::on_current_device(context.stream()));
    } else {
      cuda::copy_async(copy[t], live[t].data, spec.bytes(), kDirection, context.stream());
    }
  }
  context.wait("copy the tensors");
}

/// A detector with the caller's snapshot or with its own, in memory of kind kKind. For masters, the snapshot holds
/// their cast.
template <MemoryKind kKind>
class DeviceSnapshot final : public DeviceDetector {
 public:
  /// If `snapshot` is empty, the detector makes its own.
  DeviceSnapshot(DeviceDetector::Origin origin, std::vector<TensorRef> live, std::vector<TensorRef> snapshot)
      : DeviceDetector(std::move(origin)), live_(std::move(live)), snapshot_(std::move(snapshot)) {
    if (snapshot_.empty() && table->size() != 0) {
      require_contiguous(*table, live_, "a snapshot that the detector makes");
      copy_ = cuda::TensorMemory<kKind>(
          *table, [](const TensorSpec& spec) { return spec.bytes(); }, "the snapshot", live_);
      copy_tensors(*table, live_, context, copy_);
      for (std::size_t t = 0; t < table->size(); ++t) {
        snapshot_.push_back(ref_to((*table)[t], copy_[t], context.device()));
      }
      return;
    }
    check_refs(*table, snapshot_, "snapshot");
    for (std::size_t t = 0; t < table->size(); ++t) {
      if ((*table)[t].elements() == 0 || live_[t].data != snapshot_[t].data) continue;
      throw Error(ErrorCode::kUsage, "its snapshot is the live tensor itself",
                  fmt::format("tensor '{}'", (*table)[t].name));
    }
  }

  PublisherBackend::Abilities abilities(const EncodeOptions& options) const noexcept override {
    return snapshot_abilities(options);
  }

  cuda::DeviceEncoder make_encoder(const JoinedTables& tables, const EncodeOptions& options) override {
    std::vector<cuda::CompareTensor> tensors;
    for (std::size_t t = 0; t < table->size(); ++t) {
      tensors.push_back({live_[t].data, snapshot_[t].data, live_[t].strides, snapshot_[t].strides,
                         is_master((*table)[t], live_[t].dtype)});
    }
    return cuda::DeviceEncoder::compare(tables, tensors, abilities(options).refreshes_in_pass, options,
                                        encoder_options());
  }

  std::vector<TensorRef> state() override { return snapshot_; }

 private:
  std::vector<TensorRef> live_;
  cuda::TensorMemory<kKind> copy_;
  std::vector<TensorRef> snapshot_;
};

/// A detector with its own snapshot in pinned host memory, which is prefetched in chunks. For tensors without masters.
class PinnedSnapshot final : public DeviceDetector {
 public:
  PinnedSnapshot(DeviceDetector::Origin origin, std::vector<TensorRef> live)
      : DeviceDetector(std::move(origin)), live_(std::move(live)) {
    require_contiguous(*table, live_, "a pinned snapshot");
    copy_ = cuda::TensorMemory<MemoryKind::kPinnedHost>(
        *table, [](const TensorSpec& spec) { return spec.bytes(); }, "the snapshot", live_);
    copy_tensors(*table, live_, context, copy_);
  }

  PublisherBackend::Abilities abilities(const EncodeOptions& options) const noexcept override {
    return snapshot_abilities(options);
  }

  cuda::DeviceEncoder make_encoder(const JoinedTables& tables, const EncodeOptions& options) override {
    std::vector<cuda::PinnedTensor> tensors;
    for (std::size_t t = 0; t < table->size(); ++t) tensors.push_back({live_[t].data, copy_[t]});
    return cuda::DeviceEncoder::compare_pinned(tables, tensors, abilities(options).refreshes_in_pass, options,
                                               encoder_options());
  }

  /// Returns the pinned snapshot, which the device can read.
  std::vector<TensorRef> state() override {
    std::vector<TensorRef> tensors;
    for (std::size_t t = 0; t < table->size(); ++t) {
      tensors.push_back(ref_to((*table)[t], copy_[t], context.device()));
    }
    return tensors;
  }

 private:
  std::vector<TensorRef> live_;
  cuda::TensorMemory<MemoryKind::kPinnedHost> copy_;
};

class DeviceFusedCast final : public DeviceDetector {
 public:
  DeviceFusedCast(DeviceDetector::Origin origin, std::vector<TensorRef> masters, std::vector<TensorRef> bf16)
      : DeviceDetector(std::move(origin)), masters_(std::move(masters)), bf16_(std::move(bf16)) {
    check_cast_masters(*table, masters_);
    check_refs(*table, bf16_, "bf16");
    require_contiguous(*table, masters_, "a fused cast");
    require_contiguous(*table, bf16_, "a fused cast");
  }

  PublisherBackend::Abilities abilities(const EncodeOptions&) const noexcept override {
    return {.knows_old = true, .consumes_changes = true};
  }

  cuda::DeviceEncoder make_encoder(const JoinedTables& tables, const EncodeOptions& options) override {
    std::vector<cuda::CastTensor> tensors;
    for (std::size_t t = 0; t < table->size(); ++t) {
      tensors.push_back({reinterpret_cast<const float*>(masters_[t].data), bf16_[t].data});
    }
    return cuda::DeviceEncoder::fused_cast(tables, tensors, options, encoder_options());
  }

  std::vector<TensorRef> state() override { return bf16_; }

 private:
  std::vector<TensorRef> masters_;  ///< Masters of each tensor; without data if the tensor does not change.
  std::vector<TensorRef> bf16_;
};

class Mask final : public DeviceDetector {
 public:
  Mask(DeviceDetector::Origin origin, std::vector<TensorRef> live)
      : DeviceDetector(std::move(origin)),
        live_(std::move(live)),
        flags_(*table, mask_bytes, "the mask"),
        in_flight_(*table, mask_bytes, "the mask") {
    check_refs(*table, live_, "live");
    require_contiguous(*table, live_, "a mask");
    device_ = cuda::on_current_device(context.stream());
    cuda::DeviceStream loader = device_;
    loader.loads_only = true;
    cuda::launch_or_words(nullptr, nullptr, 0, loader);
    clear(flags_);
    clear(in_flight_);
  }

  PublisherBackend::Abilities abilities(const EncodeOptions&) const noexcept override { return {}; }

  cuda::DeviceEncoder make_encoder(const JoinedTables& tables, const EncodeOptions& options) override {
    std::vector<cuda::MaskTensor> tensors;
    for (std::size_t t = 0; t < table->size(); ++t) {
      tensors.push_back({live_[t].data, reinterpret_cast<const std::uint64_t*>(in_flight_[t])});
    }
    return cuda::DeviceEncoder::mask(tables, tensors, options, encoder_options());
  }

  std::vector<TensorRef> state() override { return live_; }

  void begin() override {
    cuda::copy_async(in_flight_.begin(), flags_.begin(), flags_.bytes(), cudaMemcpyDeviceToDevice, context.stream());
  }
  void finish() override { clear(flags_); }
  void aborted() override { cuda::launch_or_words(words(flags_), words(in_flight_), flags_.bytes() / 8, device_); }

  void mark(std::size_t tensor, const std::uint64_t* d_words, cudaStream_t stream) override {
    if (tensor >= table->size()) {
      throw Error(ErrorCode::kUsage, fmt::format("tensor {} of a table of {}", tensor, table->size()));
    }
    const TensorSpec& spec = (*table)[tensor];
    if (spec.elements() == 0) return;
    if (d_words == nullptr || reinterpret_cast<std::uintptr_t>(d_words) % 8 != 0) {
      throw Error(ErrorCode::kUsage, "the mask is null or not 8-byte aligned", fmt::format("tensor '{}'", spec.name));
    }
    const cuda::DeviceGuard guard = context.enter();
    // The marking runs after the last publish has used the flags and before the next one will.
    cuda::record(marking_.get(), context.stream());
    cuda::wait_behind(stream, marking_.get());
    cuda::DeviceStream caller = device_;
    caller.stream = stream;
    cuda::launch_or_words(reinterpret_cast<std::uint64_t*>(flags_[tensor]), d_words, (spec.elements() + 63) / 64,
                          caller);
    cuda::record(marked_.get(), stream);
    cuda::wait_behind(context.stream(), marked_.get());
  }

 private:
  using Flags = cuda::TensorMemory<MemoryKind::kDevice>;

  static std::uint64_t mask_bytes(const TensorSpec& spec) { return (spec.elements() + 63) / 64 * 8; }
  static std::uint64_t* words(const Flags& flags) { return reinterpret_cast<std::uint64_t*>(flags.begin()); }
  void clear(const Flags& flags) {
    if (flags.bytes() == 0) return;
    cuda::check(cudaMemsetAsync(flags.begin(), 0, flags.bytes(), context.stream()), "cudaMemsetAsync");
  }

  std::vector<TensorRef> live_;
  Flags flags_;      ///< Elements marked since the last publish.
  Flags in_flight_;  ///< Elements in the publish that is not yet known to have succeeded.
  cuda::DeviceStream device_;
  cuda::Event marking_;
  cuda::Event marked_;
};

}  // namespace

bool device_backend_available() noexcept { return true; }

std::unique_ptr<Detector> make_device_detector(std::shared_ptr<const TensorTable> table, std::vector<TensorRef> live,
                                               DetectorOptions options, const DeviceContext& context,
                                               std::uint64_t chunk_bytes) {
  DeviceDetector::Origin origin{table, context, chunk_bytes};
  const auto refuse = [](const char* what) { throw Error(ErrorCode::kUsage, what); };
  if (options.pinned && (options.by != Detection::kSnapshot || !options.held.empty())) {
    refuse("a pinned snapshot is one that the detector makes");
  }
  switch (options.by) {
    case Detection::kSnapshot:
      check_refs(*table, live, "live", true);
      if (options.pinned && has_masters(*table, live)) {
        return make<DeviceSnapshot<MemoryKind::kPinnedHost>>(std::move(origin), std::move(live),
                                                             std::vector<TensorRef>{});
      }
      if (options.pinned) return make<PinnedSnapshot>(std::move(origin), std::move(live));
      return make<DeviceSnapshot<MemoryKind::kDevice>>(std::move(origin), std::move(live), std::move(options.held));
    case Detection::kFusedCast:
      return make<DeviceFusedCast>(std::move(origin), std::move(live), std::move(options.held));
    case Detection::kMask:
      if (!options.held.empty()) refuse("a mask has no snapshot");
      return make<Mask>(std::move(origin), std::move(live));
  }
  throw Error(ErrorCode::kUsage, "there is no such way to detect changes");
}

}  // namespace sparsecast
