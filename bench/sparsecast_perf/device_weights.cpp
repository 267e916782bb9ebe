// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/error.hpp"
#include "sparsecast_perf/weights.hpp"

#if defined(SPARSECAST_HAVE_CUDART) || defined(SPARSECAST_CUDA_EMULATION)

#include <cstring>
#include <optional>

#include "common/count_differing.hpp"
#include "cuda/common/tensor_memory.hpp"
#include "sparsecast/device.hpp"
#include "sparsecast/nccl_transport.hpp"
#include "sparsecast_perf/bounce.hpp"

namespace sparsecast::perf {
namespace {

using Arena = cuda::TensorMemory<cuda::MemoryKind::kDevice>;

template <class Pointer>
std::vector<Pointer> d_tensors(const Arena& arena) {
  std::vector<Pointer> pointers;
  for (std::size_t t = 0; t < arena.size(); ++t) pointers.push_back(reinterpret_cast<Pointer>(arena[t]));
  return pointers;
}

Arena weights_arena(const TensorTable& table) {
  return {table, [](const TensorSpec& spec) { return spec.bytes(); }};
}

class DeviceWeights final : public Weights {
 public:
  DeviceWeights(const WeightsSetting& setting, int device)
      : setting_(setting),
        guard_(device),
        patience_(static_cast<std::int64_t>(setting.options.timeout_seconds * 1000)),
        bounce_(patience_),
        live_(weights_arena(*setting.table)),
        dense_(weights_arena(*setting.table)) {
    settings_.device = device;
    settings_.deadline = patience_;
    if (setting_.source != nullptr && fused()) {
      masters_ = {*setting_.table, [](const TensorSpec& spec) { return spec.elements() * sizeof(float); }};
    }
    if (setting_.wire.device_transport() == nullptr) record_ = {Bytes(dense_.bytes())};
  }

  /// The fused cast makes the weights of each step itself, on the device; the dense buffer gets those that the source
  /// has cast on the host, so that a wrong cast is found as well.
  void take_step() override {
    if (!fused()) return upload(setting_.source->weights(), live_);
    const std::vector<std::span<const float>> masters = setting_.source->masters();
    for (std::size_t t = 0; t < masters.size(); ++t) bounce_.upload(masters_[t], std::as_bytes(masters[t]));
  }

  void fill_dense() override { upload(setting_.source->weights(), dense_); }

  void broadcast_dense(Deadline deadline) override {
    if (setting_.wire.device_transport() != nullptr) {
      setting_.wire.broadcast_device(dense_.begin(), dense_.bytes(), deadline);
      return;
    }
    const bool publishes = setting_.source != nullptr;
    if (publishes) bounce_.download(record_[0], dense_.begin());
    setting_.wire.broadcast(record_, deadline);
    if (!publishes) bounce_.upload(dense_.begin(), record_[0]);
  }

  void open() override {
    cuda::Stream stream;
    cuda::copy_async(live_.begin(), dense_.begin(), live_.bytes(), cudaMemcpyDeviceToDevice, stream.get());
    cuda::HostWait(patience_).wait(stream.get(), "copy");
    if (setting_.source != nullptr) {
      PublisherOptions options;
      options.encode = setting_.options.encode;
      std::vector<TensorRef> live = live_tensors(options.detection);
      publisher_.emplace(setting_.table, std::move(live), options);
      return;
    }
    subscriber_.emplace(setting_.table, refs_to(*setting_.table, d_tensors<void*>(live_), settings_.device),
                        SubscriberOptions{}, settings_);
  }

  SyncReport sync(std::chrono::milliseconds timeout) override {
    return publisher_ ? sync_send(*publisher_, setting_.wire.transport(), timeout)
                      : sync_receive(*subscriber_, setting_.wire.transport(), kPublisher, timeout);
  }

  std::uint64_t count_wrong() override {
    if (publisher_) return 0;
    const TensorTable& table = *setting_.table;
    std::uint64_t wrong = 0;
    for (std::size_t t = 0; t < table.size(); ++t) {
      const std::size_t size = element_size(table[t].dtype);
      bounce_.compare(live_[t], dense_[t], table[t].bytes(), [&](ConstBytes found, ConstBytes expected) {
        wrong += bench::count_differing(found, expected, size);
      });
    }
    return wrong;
  }

  bool wants_cast() const noexcept override { return true; }
  const char* detector() const noexcept override {
    if (fused()) return "fused cast on the device";
    return pinned() ? "snapshot in pinned host memory" : "device snapshot";
  }

 private:
  bool fused() const noexcept { return setting_.options.detector == DetectorKind::kFused; }
  bool pinned() const noexcept { return setting_.options.detector == DetectorKind::kPinned; }

  void upload(const std::vector<MutableBytes>& weights, const Arena& arena) {
    for (std::size_t t = 0; t < weights.size(); ++t) bounce_.upload(arena[t], weights[t]);
  }

  /// Returns what the publisher reads; fills in how.
  std::vector<TensorRef> live_tensors(DetectorOptions& options) {
    const TensorTable& table = *setting_.table;
    options.device = settings_;
    std::vector<TensorRef> live = refs_to(table, d_tensors<void*>(live_), settings_.device);
    if (fused()) {
      take_step();
      std::vector<TensorRef> masters = refs_to(table, d_tensors<void*>(masters_), settings_.device);
      const std::vector<std::span<const float>> given = setting_.source->masters();
      for (std::size_t t = 0; t < masters.size(); ++t) {
        masters[t].dtype = DType::kF32;
        if (given[t].empty()) masters[t].data = nullptr;
      }
      options.by = Detection::kFusedCast;
      options.held = std::exchange(live, std::move(masters));
    }
    options.pinned = pinned();
    return live;
  }

  WeightsSetting setting_;
  cuda::DeviceGuard guard_;
  std::chrono::milliseconds patience_;
  DeviceOptions settings_;
  Bounce bounce_;
  Arena live_;                 ///< Publisher: what the detector looks at.
  Arena dense_;                ///< Of the same layout, padding included, so that one broadcast carries it.
  Arena masters_;              ///< Publisher, fused cast.
  std::vector<Bytes> record_;  ///< The dense buffer on its way through the host, where the wire needs that.
  std::optional<Publisher> publisher_;
  std::optional<Subscriber> subscriber_;
};

}  // namespace

std::unique_ptr<Weights> make_device_weights(const WeightsSetting& setting, int device) {
  return std::make_unique<DeviceWeights>(setting, device);
}

}  // namespace sparsecast::perf

#else

namespace sparsecast::perf {

std::unique_ptr<Weights> make_device_weights(const WeightsSetting&, int) {
  throw Error(ErrorCode::kUnsupported, "this build has no device backend");
}

}  // namespace sparsecast::perf

#endif
