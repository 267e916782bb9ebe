// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <optional>

#include "common/count_differing.hpp"
#include "sparsecast_perf/weights.hpp"

namespace sparsecast::perf {
namespace {

/// `bytes` cut into the table's tensors.
std::vector<MutableBytes> tensors_in(const TensorTable& table, std::span<std::byte> bytes) {
  std::vector<MutableBytes> views;
  std::size_t offset = 0;
  for (const TensorSpec& spec : table) {
    views.push_back(bytes.subspan(offset, spec.bytes()));
    offset += spec.bytes();
  }
  return views;
}

class HostWeights final : public Weights {
 public:
  explicit HostWeights(const WeightsSetting& setting) : setting_(setting), dense_{Bytes(setting.table->bytes())} {
    if (setting_.source == nullptr) live_.resize(setting_.table->bytes());
  }

  void take_step() override {}  // The detector looks at the source's own memory.

  void fill_dense() override {
    std::size_t offset = 0;
    for (const MutableBytes tensor : setting_.source->weights()) {
      if (!tensor.empty()) std::memcpy(dense_[0].data() + offset, tensor.data(), tensor.size());
      offset += tensor.size();
    }
  }

  void broadcast_dense(Deadline deadline) override { setting_.wire.broadcast(dense_, deadline); }

  void open() override {
    if (setting_.source != nullptr) {
      PublisherOptions settings;
      settings.encode = setting_.options.encode;
      std::vector<TensorRef> live = live_tensors(settings.detection);
      publisher_.emplace(setting_.table, std::move(live), settings);
      return;
    }
    live_ = dense_[0];
    SubscriberOptions settings;
    settings.threads = setting_.options.encode.threads;
    subscriber_.emplace(setting_.table, refs_to(*setting_.table, tensors_in(*setting_.table, live_)), settings);
  }

  SyncReport sync(std::chrono::milliseconds timeout) override {
    if (publisher_) return sync_send(*publisher_, setting_.wire.transport(), timeout);
    return sync_receive(*subscriber_, setting_.wire.transport(), kPublisher, timeout);
  }

  std::uint64_t count_wrong() override {
    if (publisher_) return 0;
    const TensorTable& table = *setting_.table;
    const std::vector<MutableBytes> found = tensors_in(table, live_);
    const std::vector<MutableBytes> expected = tensors_in(table, dense_[0]);
    std::uint64_t wrong = 0;
    for (std::size_t t = 0; t < table.size(); ++t) {
      wrong += bench::count_differing(found[t], expected[t], element_size(table[t].dtype));
    }
    return wrong;
  }

  bool wants_cast() const noexcept override { return !fused(); }
  const char* detector() const noexcept override { return fused() ? "fused cast" : "host snapshot"; }

 private:
  bool fused() const noexcept { return setting_.options.detector == DetectorKind::kFused; }

  /// Returns what the publisher reads; fills in how.
  std::vector<TensorRef> live_tensors(DetectorOptions& options) {
    const TensorTable& table = *setting_.table;
    std::vector<TensorRef> live = refs_to(table, setting_.source->weights());
    if (fused()) {
      const std::vector<std::span<const float>> masters = setting_.source->masters();
      options.by = Detection::kFusedCast;
      options.held = live;
      for (std::size_t t = 0; t < table.size(); ++t) {
        live[t] = ref_to(table[t], masters[t].empty() ? nullptr : masters[t].data());
        live[t].dtype = DType::kF32;
      }
    }
    return live;
  }

  WeightsSetting setting_;
  Bytes live_;                ///< Receivers.
  std::vector<Bytes> dense_;  ///< One record, so that the plain broadcast is as cheap as it can be.
  std::optional<Publisher> publisher_;
  std::optional<Subscriber> subscriber_;
};

}  // namespace

std::unique_ptr<Weights> make_host_weights(const WeightsSetting& setting) {
  return std::make_unique<HostWeights>(setting);
}

}  // namespace sparsecast::perf
