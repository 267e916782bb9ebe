// SPDX-License-Identifier: Apache-2.0

// The detectors of devices: a snapshot in device memory (the library's own or the caller's) or in pinned host memory,
// the fused cast, a caller's mask.

#include <fmt/format.h>

#include "core/tensor_view.hpp"
#include "cuda/common/encode_launchers.hpp"
#include "cuda/common/tensor_memory.hpp"
#include "device/device_detector.hpp"

namespace sparsecast {

using cuda::DeviceMemory;
using cuda::MemoryKind;
using Implementation = DeviceDetector::Implementation;

Implementation::Implementation(Implementation::Origin origin)
    : table(std::move(origin.table)), context(std::move(origin.context)), chunk_bytes_(origin.chunk_bytes) {}

cuda::DeviceEncoderOptions Implementation::encoder_options() const {
  cuda::DeviceEncoderOptions options;
  options.chunk_bytes = chunk_bytes_;
  options.deadline = context.deadline();
  return options;
}

namespace {

void require_one_each(const TensorTable& table, std::size_t tensors, const char* what) {
  if (tensors == table.size()) return;
  throw Error(ErrorCode::kUsage, fmt::format("{} {} tensors for a table of {}", tensors, what, table.size()));
}

/// `multiple`: of bytes.
void check_pointer(const TensorSpec& spec, const void* d_data, std::size_t multiple, const char* what) {
  const std::string where = fmt::format("tensor '{}'", spec.name);
  if (d_data == nullptr) throw Error(ErrorCode::kUsage, fmt::format("its {} pointer is null", what), where);
  if (reinterpret_cast<std::uintptr_t>(d_data) % multiple != 0) {
    throw Error(ErrorCode::kUsage, fmt::format("its {} pointer is not aligned to its elements", what), where);
  }
}

/// Returns the pointers if they fit the table. `optional`: null pointers are allowed everywhere.
template <class Pointer>
std::vector<Pointer> fitting(const TensorTable& table, std::vector<Pointer> pointers, const char* what,
                             std::size_t alignment = 0, bool optional = false) {
  require_one_each(table, pointers.size(), what);
  for (std::size_t t = 0; t < table.size(); ++t) {
    if (table[t].elements() == 0 || (optional && pointers[t] == nullptr)) continue;
    check_pointer(table[t], pointers[t], alignment != 0 ? alignment : element_size(table[t].dtype), what);
  }
  return pointers;
}

/// Checks a tensor that may be a strided view. Throws Error{kUsage}.
void check_view(const TensorSpec& spec, const DeviceTensor& tensor, DType dtype, const char* what) {
  if (spec.elements() == 0) return;
  check_pointer(spec, tensor.d_data, element_size(dtype), what);
  static_cast<void>(view_of_tensor(spec, tensor.strides));
}

std::vector<DeviceTensor> fitting(const TensorTable& table, std::vector<DeviceTensor> tensors, const char* what) {
  require_one_each(table, tensors.size(), what);
  for (std::size_t t = 0; t < table.size(); ++t) check_view(table[t], tensors[t], table[t].dtype, what);
  return tensors;
}

/// Checks one tensor per table entry; a tensor may be an fp32 master of a bf16 entry. Throws Error{kUsage}.
std::vector<DeviceSourceTensor> fitting(const TensorTable& table, std::vector<DeviceSourceTensor> tensors,
                                        const char* what) {
  require_one_each(table, tensors.size(), what);
  for (std::size_t t = 0; t < table.size(); ++t) {
    static_cast<void>(is_master(table[t], tensors[t].dtype));
    check_view(table[t], tensors[t].memory, tensors[t].dtype, what);
  }
  return tensors;
}

std::vector<DeviceSourceTensor> own_bits(const TensorTable& table, std::vector<DeviceTensor> tensors) {
  require_one_each(table, tensors.size(), "live");
  std::vector<DeviceSourceTensor> sources;
  for (std::size_t t = 0; t < table.size(); ++t) sources.push_back({std::move(tensors[t]), table[t].dtype});
  return sources;
}

/// Makes a `Kind` with its device set.
template <class Kind, class... Pointers>
std::unique_ptr<Kind> make(std::shared_ptr<const TensorTable> table, const DeviceOptions& options,
                           Pointers&&... pointers) {
  Implementation::Origin origin{std::move(table), DeviceContext(options), options.chunk_bytes};
  const cuda::DeviceGuard guard = origin.context.enter();
  return std::make_unique<Kind>(std::move(origin), std::forward<Pointers>(pointers)...);
}

PublisherBackend::Abilities snapshot_abilities(const EncodeOptions& options) noexcept {
  return {.knows_old = true, .keeps_snapshot = true, .refreshes_in_pass = options.values != ValueCodec::kRaw};
}

template <MemoryKind kKind>
class Snapshot final : public Implementation {
 public:
  Snapshot(Implementation::Origin origin, std::vector<const void*> d_live)
      : Implementation(std::move(origin)),
        d_live_(fitting(*table, std::move(d_live), "live")),
        copy_(*table, [](const TensorSpec& spec) { return spec.bytes(); }) {
    constexpr cudaMemcpyKind kDirection =
        kKind == MemoryKind::kDevice ? cudaMemcpyDeviceToDevice : cudaMemcpyDeviceToHost;
    for (std::size_t t = 0; t < table->size(); ++t) {
      if ((*table)[t].bytes() == 0) continue;
      cuda::copy_async(copy_[t], d_live_[t], (*table)[t].bytes(), kDirection, context.stream());
    }
    context.wait("copy the tensors");
  }

  PublisherBackend::Abilities abilities(const EncodeOptions& options) const noexcept override {
    return snapshot_abilities(options);
  }

  cuda::DeviceEncoder make_encoder(const JoinedTables& tables, const EncodeOptions& options) override {
    const bool refresh = abilities(options).refreshes_in_pass;
    if constexpr (kKind == MemoryKind::kDevice) {
      std::vector<cuda::CompareTensor> tensors;
      for (std::size_t t = 0; t < table->size(); ++t) tensors.push_back({d_live_[t], copy_[t]});
      return cuda::DeviceEncoder::compare(tables, tensors, refresh, options, encoder_options());
    } else {
      std::vector<cuda::PinnedTensor> tensors;
      for (std::size_t t = 0; t < table->size(); ++t) tensors.push_back({d_live_[t], copy_[t]});
      return cuda::DeviceEncoder::compare_pinned(tables, tensors, refresh, options, encoder_options());
    }
  }

  /// The device reaches pinned host memory as well.
  std::vector<DeviceTensor> state() override {
    std::vector<DeviceTensor> tensors;
    for (std::size_t t = 0; t < table->size(); ++t) tensors.push_back({copy_[t], {}});
    return tensors;
  }

 private:
  std::vector<const void*> d_live_;
  cuda::TensorMemory<kKind> copy_;
};

/// A snapshot in device memory that the caller keeps; of masters, that of their cast.
class CallerSnapshot final : public Implementation {
 public:
  CallerSnapshot(Implementation::Origin origin, std::vector<DeviceSourceTensor> live,
                 std::vector<DeviceTensor> snapshot)
      : Implementation(std::move(origin)),
        live_(fitting(*table, std::move(live), "live")),
        snapshot_(fitting(*table, std::move(snapshot), "snapshot")) {
    for (std::size_t t = 0; t < table->size(); ++t) {
      if ((*table)[t].elements() == 0 || live_[t].memory.d_data != snapshot_[t].d_data) continue;
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
      const DeviceTensor& live = live_[t].memory;
      tensors.push_back({live.d_data, snapshot_[t].d_data, live.strides, snapshot_[t].strides,
                         is_master((*table)[t], live_[t].dtype)});
    }
    return cuda::DeviceEncoder::compare(tables, tensors, abilities(options).refreshes_in_pass, options,
                                        encoder_options());
  }

  std::vector<DeviceTensor> state() override { return snapshot_; }

 private:
  std::vector<DeviceSourceTensor> live_;
  std::vector<DeviceTensor> snapshot_;
};

class DeviceFusedCast final : public Implementation {
 public:
  DeviceFusedCast(Implementation::Origin origin, std::vector<const float*> d_masters, std::vector<void*> d_bf16)
      : Implementation(std::move(origin)),
        d_masters_(fitting(*table, std::move(d_masters), "master", sizeof(float), true)),
        d_bf16_(fitting(*table, std::move(d_bf16), "bf16")) {
    for (std::size_t t = 0; t < table->size(); ++t) {
      if (d_masters_[t] != nullptr && (*table)[t].dtype != DType::kBF16) {
        throw Error(ErrorCode::kUsage, "only bf16 has a fused cast", fmt::format("tensor '{}'", (*table)[t].name));
      }
    }
  }

  PublisherBackend::Abilities abilities(const EncodeOptions&) const noexcept override {
    return {.knows_old = true, .consumes_changes = true};
  }

  cuda::DeviceEncoder make_encoder(const JoinedTables& tables, const EncodeOptions& options) override {
    std::vector<cuda::CastTensor> tensors;
    for (std::size_t t = 0; t < table->size(); ++t) tensors.push_back({d_masters_[t], d_bf16_[t]});
    return cuda::DeviceEncoder::fused_cast(tables, tensors, options, encoder_options());
  }

  std::vector<DeviceTensor> state() override {
    std::vector<DeviceTensor> tensors;
    for (void* const d_tensor : d_bf16_) tensors.push_back({d_tensor, {}});
    return tensors;
  }

 private:
  std::vector<const float*> d_masters_;
  std::vector<void*> d_bf16_;
};

class Mask final : public Implementation {
 public:
  Mask(Implementation::Origin origin, std::vector<const void*> d_live)
      : Implementation(std::move(origin)),
        d_live_(fitting(*table, std::move(d_live), "live")),
        flags_(*table, mask_bytes),
        in_flight_(*table, mask_bytes) {
    device_.stream = context.stream();
    device_.multiprocessors = cuda::multiprocessors();
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
      tensors.push_back({d_live_[t], reinterpret_cast<const std::uint64_t*>(in_flight_[t])});
    }
    return cuda::DeviceEncoder::mask(tables, tensors, options, encoder_options());
  }

  std::vector<DeviceTensor> state() override {
    std::vector<DeviceTensor> tensors;
    for (const void* const d_tensor : d_live_) tensors.push_back({const_cast<void*>(d_tensor), {}});  // Only read.
    return tensors;
  }

  void begin() override {
    cuda::copy_async(in_flight_.begin(), flags_.begin(), flags_.bytes(), cudaMemcpyDeviceToDevice, context.stream());
  }
  void finish() override { clear(flags_); }
  void aborted() override { cuda::launch_or_words(words(flags_), words(in_flight_), flags_.bytes() / 8, device_); }

  void mark(std::size_t tensor, const std::uint64_t* d_words, cudaStream_t stream) {
    if (tensor >= table->size()) {
      throw Error(ErrorCode::kUsage, fmt::format("tensor {} of a table of {}", tensor, table->size()));
    }
    const TensorSpec& spec = (*table)[tensor];
    if (spec.elements() == 0) return;
    if (d_words == nullptr || reinterpret_cast<std::uintptr_t>(d_words) % 8 != 0) {
      throw Error(ErrorCode::kUsage, "the mask is null or not 8-byte aligned", fmt::format("tensor '{}'", spec.name));
    }
    const cuda::DeviceGuard guard = context.enter();
    // Between what the last publish does with the flags and what the next one will.
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

  std::vector<const void*> d_live_;
  Flags flags_;      ///< Marked since the last publish.
  Flags in_flight_;  ///< Taken by the publish whose fate is open.
  cuda::DeviceStream device_;
  cuda::Event marking_;
  cuda::Event marked_;
};

}  // namespace

bool device_backend_available() noexcept { return true; }

DeviceDetector::DeviceDetector(std::unique_ptr<Implementation> implementation)
    : implementation_(std::move(implementation)) {}
DeviceDetector::~DeviceDetector() = default;

std::unique_ptr<DeviceDetector> make_device_snapshot(std::shared_ptr<const TensorTable> table,
                                                     std::vector<const void*> d_live, const DeviceOptions& options) {
  return std::make_unique<DeviceDetector>(
      make<Snapshot<MemoryKind::kDevice>>(std::move(table), options, std::move(d_live)));
}

std::unique_ptr<DeviceDetector> make_device_snapshot_over(std::shared_ptr<const TensorTable> table,
                                                          std::vector<DeviceTensor> live,
                                                          std::vector<DeviceTensor> snapshot,
                                                          const DeviceOptions& options) {
  std::vector<DeviceSourceTensor> sources = own_bits(*table, std::move(live));
  return make_device_cast_snapshot(std::move(table), std::move(sources), std::move(snapshot), options);
}

std::unique_ptr<DeviceDetector> make_device_cast_snapshot(std::shared_ptr<const TensorTable> table,
                                                          std::vector<DeviceSourceTensor> live,
                                                          std::vector<DeviceTensor> snapshot,
                                                          const DeviceOptions& options) {
  return std::make_unique<DeviceDetector>(
      make<CallerSnapshot>(std::move(table), options, std::move(live), std::move(snapshot)));
}

std::unique_ptr<DeviceDetector> make_pinned_snapshot(std::shared_ptr<const TensorTable> table,
                                                     std::vector<const void*> d_live, const DeviceOptions& options) {
  return std::make_unique<DeviceDetector>(
      make<Snapshot<MemoryKind::kPinnedHost>>(std::move(table), options, std::move(d_live)));
}

std::unique_ptr<DeviceDetector> make_device_fused_cast(std::shared_ptr<const TensorTable> table,
                                                       std::vector<const float*> d_masters, std::vector<void*> d_bf16,
                                                       const DeviceOptions& options) {
  return std::make_unique<DeviceDetector>(
      make<DeviceFusedCast>(std::move(table), options, std::move(d_masters), std::move(d_bf16)));
}

DeviceMaskDetector::DeviceMaskDetector(std::shared_ptr<const TensorTable> table, std::vector<const void*> d_live,
                                       const DeviceOptions& options)
    : DeviceDetector(make<Mask>(std::move(table), options, std::move(d_live))) {}

void DeviceMaskDetector::mark(std::size_t tensor, const std::uint64_t* d_words, CUstream_st* stream) {
  static_cast<Mask&>(implementation()).mark(tensor, d_words, stream);
}

}  // namespace sparsecast
