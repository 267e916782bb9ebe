// SPDX-License-Identifier: Apache-2.0

// CPU detectors that keep no snapshot: compare, fused cast, and the caller's mask.

#include <fmt/format.h>

#include <algorithm>

#include "codec/kernels.hpp"
#include "core/tensor_view.hpp"
#include "cpu/detector_parts.hpp"
#include "sparsecast/detector.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

class CompareDetector : public Detector {
 public:
  CompareDetector(const TensorTable& table, const std::vector<ConstTensorBytes>& current,
                  const std::vector<ConstTensorBytes>& base)
      : sizes_(element_sizes(table)),
        current_(host_tensors(table, current, "current")),
        base_(host_tensors(table, base, "base")) {}

  std::uint32_t part() const noexcept override { return kDetectorPart; }
  TileView detect(std::size_t tensor, std::uint64_t first, std::uint32_t count, TileWorkspace& workspace) override {
    const std::size_t size = sizes_[tensor];
    TileView view;
    view.current = current_[tensor].data + first * size;
    view.old = base_[tensor].data + first * size;
    view.changed = cpu::compare_tile(view.current, view.old, count, size, workspace.positions);
    return view;
  }
  ConstHostTensor current(std::size_t tensor) const override { return current_[tensor]; }
  bool knows_old() const noexcept override { return true; }

 private:
  std::vector<std::size_t> sizes_;
  std::vector<ConstHostTensor> current_;
  std::vector<ConstHostTensor> base_;
};

class FusedCast : public Detector {
 public:
  FusedCast(const TensorTable& table, std::vector<std::span<const float>> masters, const std::vector<TensorBytes>& bf16)
      : table_(table), masters_(std::move(masters)), bf16_(host_tensors(table, bf16, "bf16")) {
    if (masters_.size() != table_.size()) throw Error(ErrorCode::kUsage, "one span of masters a tensor is needed");
    for (std::size_t i = 0; i < table_.size(); ++i) {
      const std::string where = fmt::format("tensor '{}'", table_[i].name);
      if (masters_[i].empty()) continue;
      if (table_[i].dtype != DType::kBF16) throw Error(ErrorCode::kUsage, "only bf16 has a fused cast", where);
      if (masters_[i].size() != table_[i].elements()) {
        throw Error(ErrorCode::kUsage,
                    fmt::format("{} masters for {} elements", masters_[i].size(), table_[i].elements()), where);
      }
      if (reinterpret_cast<std::uintptr_t>(bf16_[i].data) % 2 != 0) {
        throw Error(ErrorCode::kUsage, "the bf16 tensor is not aligned to its elements", where);
      }
    }
  }

  std::uint32_t part() const noexcept override { return kDetectorPart; }
  TileView detect(std::size_t tensor, std::uint64_t first, std::uint32_t count, TileWorkspace& workspace) override {
    TileView view;
    view.current = bf16_[tensor].data + first * 2;
    view.old = workspace.kept;
    if (masters_[tensor].empty()) return view;
    std::byte* const bf16 = bf16_[tensor].data + first * 2;
    view.changed = cpu::cast_tile(std::as_bytes(masters_[tensor]).data() + first * 4, count, bf16, bf16, workspace.kept,
                                  workspace.positions);
    return view;
  }
  ConstHostTensor current(std::size_t tensor) const override { return {bf16_[tensor].data, {}}; }
  bool knows_old() const noexcept override { return true; }
  bool consumes_changes() const noexcept override { return true; }

 private:
  const TensorTable& table_;
  std::vector<std::span<const float>> masters_;
  std::vector<HostTensor> bf16_;
};

}  // namespace

std::unique_ptr<Detector> make_compare_detector(const TensorTable& table, std::vector<ConstTensorBytes> current,
                                                std::vector<ConstTensorBytes> base) {
  return std::make_unique<CompareDetector>(table, current, base);
}

std::unique_ptr<Detector> make_fused_cast(const TensorTable& table, std::vector<std::span<const float>> masters,
                                          std::vector<TensorBytes> bf16) {
  return std::make_unique<FusedCast>(table, std::move(masters), bf16);
}

MaskDetector::MaskDetector(const TensorTable& table, const std::vector<ConstTensorBytes>& live)
    : table_(table), live_(host_tensors(table, live, "live")) {
  for (const TensorSpec& spec : table_) flags_.emplace_back((spec.elements() + 63) / 64);
  in_flight_ = flags_;
}

MaskDetector::~MaskDetector() = default;

void MaskDetector::mark(std::size_t tensor, std::span<const std::uint64_t> words) {
  std::vector<std::uint64_t>& mask = flags_.at(tensor);
  if (words.size() != mask.size()) {
    throw Error(ErrorCode::kUsage, fmt::format("{} mask words for {}", words.size(), mask.size()),
                fmt::format("tensor '{}'", table_[tensor].name));
  }
  const std::uint64_t tail = table_[tensor].elements() % 64;
  if (tail != 0 && (words.back() >> tail) != 0) {
    throw Error(ErrorCode::kUsage, "bits beyond the last element are set",
                fmt::format("tensor '{}'", table_[tensor].name));
  }
  for (std::size_t w = 0; w < words.size(); ++w) mask[w] |= words[w];
}

void MaskDetector::finish() { flags_.swap(in_flight_); }

void MaskDetector::committed() {
  for (auto& mask : in_flight_) std::fill(mask.begin(), mask.end(), 0);
}

void MaskDetector::aborted() {
  for (std::size_t i = 0; i < flags_.size(); ++i) {
    for (std::size_t w = 0; w < flags_[i].size(); ++w) flags_[i][w] |= in_flight_[i][w];
  }
  committed();
}

TileView MaskDetector::detect(std::size_t tensor, std::uint64_t first, std::uint32_t count, TileWorkspace& workspace) {
  TileView view;
  view.current = live_[tensor].data + first * element_size(table_[tensor].dtype);
  view.changed = cpu::expand_tile(flags_[tensor].data() + first / 64, count, workspace.positions);
  return view;
}

ConstHostTensor MaskDetector::current(std::size_t tensor) const { return live_[tensor]; }

}  // namespace sparsecast
