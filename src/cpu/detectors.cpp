// SPDX-License-Identifier: Apache-2.0

// CPU detectors: those that keep no snapshot (compare, fused cast, the caller's mask), and those that compare with a
// snapshot of the bits that receivers hold, in their own copy or the caller's memory.

#include <fmt/format.h>

#include <algorithm>

#include "codec/codec_common.hpp"
#include "codec/kernels.hpp"
#include "core/tensor_view.hpp"
#include "core/word.hpp"
#include "sparsecast/detector.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

/// Elements of one detect() call. Long enough that the call costs little, and short enough that the processor keeps
/// prefetching the arrays while changes are encoded (bench/results).
constexpr std::uint32_t kDetectorPart = 1024;

/// Returns the bytes of an element, by tensor.
std::vector<std::size_t> element_sizes(const TensorTable& table) {
  std::vector<std::size_t> sizes;
  sizes.reserve(table.size());
  for (const TensorSpec& spec : table) sizes.push_back(element_size(spec.dtype));
  return sizes;
}

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

namespace {

using Copies = std::vector<std::vector<std::byte>>;

/// One run of elements in live memory and in the snapshot, each with a constant step.
struct Runs {
  const std::byte* current = nullptr;
  const std::byte* old = nullptr;
  std::int64_t current_step = 1;  ///< Step in elements.
  std::int64_t old_step = 1;
  std::uint32_t first = 0;  ///< Index of the run's first element in the detect() call.
  std::uint32_t count = 0;

  /// Elements of one call: enough that its cost is small compared with the vector work.
  bool vectors() const { return count >= 32 && current_step == 1 && old_step == 1; }
};

/// Appends the positions of elements for which changed(element) is true.
template <class Changed>
std::uint32_t* list_changed(const Runs& runs, std::uint32_t* out, const Changed& changed) {
  for (std::uint32_t i = 0; i < runs.count; ++i) {
    *out = runs.first + i;  // Kept only where the bits differ; a branch would be unpredictable.
    out += changed(i) ? 1 : 0;
  }
  return out;
}

std::uint32_t* compare_elements(const Runs& runs, std::size_t size, std::uint32_t* out) {
  return with_word(size, [&]<class T>() {
    const std::byte* current = runs.current;
    const std::byte* old = runs.old;
    return list_changed(runs, out, [&](std::uint32_t) {
      const bool changed = load_word<T>(current) != load_word<T>(old);
      current += runs.current_step * static_cast<std::int64_t>(sizeof(T));
      old += runs.old_step * static_cast<std::int64_t>(sizeof(T));
      return changed;
    });
  });
}

/// Appends the positions of changed elements of masters, and stores their cast contiguously in `cast`.
std::uint32_t* cast_elements(const Runs& runs, std::byte* cast, std::uint32_t* out) {
  const std::byte* master = runs.current;
  const std::byte* old = runs.old;
  return list_changed(runs, out, [&](std::uint32_t i) {
    const std::uint16_t new_bits = bf16_from_f32_bits(load_word<std::uint32_t>(master));
    const bool changed = new_bits != load_word<std::uint16_t>(old);
    store_word(cast, i, new_bits);
    master += runs.current_step * 4;
    old += runs.old_step * 2;
    return changed;
  });
}

class HostSnapshot : public Detector {
 public:
  /// `copies` may own the snapshot's memory. `masters[t]` is true when live tensor t is the fp32 master of a bf16
  /// tensor.
  HostSnapshot(const TensorTable& table, std::vector<ConstHostTensor> live, std::vector<bool> masters,
               std::vector<HostTensor> snapshot, Copies copies)
      : sizes_(element_sizes(table)),
        live_(std::move(live)),
        masters_(std::move(masters)),
        snapshot_(std::move(snapshot)),
        copies_(std::move(copies)),
        live_places_(place_tensors(table, live_, "live")),
        snapshot_places_(place_tensors(table, snapshot_, "snapshot")) {}

  std::uint32_t part() const noexcept override { return kDetectorPart; }
  TileView detect(std::size_t tensor, std::uint64_t first, std::uint32_t count, TileWorkspace& workspace) override {
    const std::size_t size = sizes_[tensor];
    const auto& live = live_places_[tensor];
    const auto& snapshot = snapshot_places_[tensor];
    TileView view;
    view.old_view = snapshot.view.get();
    view.refresh = snapshot.view != nullptr ? snapshot.data : snapshot.data + first * size;
    view.old = view.refresh;
    if (masters_[tensor]) {
      // The parts of a tile are contiguous there.
      std::byte* const cast = workspace.kept + first % kTileElems * size;
      view.current = cast;
      view.changed = cast_runs(live, snapshot, first, count, cast, workspace.positions);
      return view;
    }
    view.current_view = live.view.get();
    view.current = live.view != nullptr ? live.data : live.data + first * size;
    view.changed = live.view == nullptr && snapshot.view == nullptr
                       ? cpu::compare_tile(view.current, view.old, count, size, workspace.positions)
                       : compare_runs(live, snapshot, size, first, count, workspace.positions);
    return view;
  }
  /// A master's bf16 bits exist only in the snapshot, once it has been updated.
  ConstHostTensor current(std::size_t tensor) const override {
    if (!masters_[tensor]) return live_[tensor];
    return {snapshot_[tensor].data, snapshot_[tensor].strides};
  }
  std::span<const HostTensor> snapshot() const noexcept override { return snapshot_; }
  bool knows_old() const noexcept override { return true; }

 private:
  /// Calls visit(runs) for runs of the innermost dimension. The runs of live memory and snapshot may have different
  /// lengths.
  template <class Visit>
  static void for_each_run(const TensorView& live, std::int64_t live_bytes, const TensorView& snapshot,
                           std::int64_t snapshot_bytes, std::uint64_t first, std::uint32_t count, const Visit& visit) {
    ElementWalk live_walk(live.view);
    ElementWalk snapshot_walk(snapshot.view);
    for (std::uint32_t at = 0; at < count;) {
      Runs runs;
      runs.current = live.data + live_walk.offset(first + at) * live_bytes;
      runs.old = snapshot.data + snapshot_walk.offset(first + at) * snapshot_bytes;
      runs.current_step = live_walk.step();
      runs.old_step = snapshot_walk.step();
      runs.first = at;
      runs.count = static_cast<std::uint32_t>(
          std::min<std::uint64_t>({live_walk.left(first + at), snapshot_walk.left(first + at), count - at}));
      visit(runs);
      at += runs.count;
    }
  }

  static std::uint32_t compare_runs(const TensorView& live, const TensorView& snapshot, std::size_t size,
                                    std::uint64_t first, std::uint32_t count, std::uint32_t* positions) {
    std::uint32_t* out = positions;
    const auto bytes = static_cast<std::int64_t>(size);
    for_each_run(live, bytes, snapshot, bytes, first, count, [&](const Runs& runs) {
      if (!runs.vectors()) {
        out = compare_elements(runs, size, out);
        return;
      }
      out = moved(out, cpu::compare_tile(runs.current, runs.old, runs.count, size, out), runs.first);
    });
    return static_cast<std::uint32_t>(out - positions);
  }

  static std::uint32_t cast_runs(const TensorView& masters, const TensorView& snapshot, std::uint64_t first,
                                 std::uint32_t count, std::byte* cast, std::uint32_t* positions) {
    std::uint32_t* out = positions;
    for_each_run(masters, 4, snapshot, 2, first, count, [&](const Runs& runs) {
      std::byte* const to = cast + std::size_t{runs.first} * 2;
      if (!runs.vectors()) {
        out = cast_elements(runs, to, out);
        return;
      }
      out = moved(out, cpu::cast_tile(runs.current, runs.count, runs.old, to, nullptr, out), runs.first);
    });
    return static_cast<std::uint32_t>(out - positions);
  }

  /// Turns positions in a run into positions in the detect() call, and returns their end.
  static std::uint32_t* moved(std::uint32_t* positions, std::uint32_t found, std::uint32_t by) {
    for (std::uint32_t i = 0; i < found; ++i) positions[i] += by;
    return positions + found;
  }

  std::vector<std::size_t> sizes_;
  std::vector<ConstHostTensor> live_;
  std::vector<bool> masters_;
  std::vector<HostTensor> snapshot_;
  Copies copies_;
  std::vector<TensorPlace<const std::byte>> live_places_;
  std::vector<TensorPlace<std::byte>> snapshot_places_;
};

}  // namespace

std::unique_ptr<Detector> make_host_snapshot(const TensorTable& table, std::vector<ConstTensorBytes> live) {
  std::vector<ConstHostTensor> tensors = host_tensors(table, live, "live");
  Copies copies;
  std::vector<HostTensor> snapshot;
  copies.reserve(live.size());
  for (const ConstTensorBytes tensor : live) {
    snapshot.push_back({copies.emplace_back(tensor.begin(), tensor.end()).data(), {}});
  }
  return std::make_unique<HostSnapshot>(table, std::move(tensors), std::vector<bool>(live.size()), std::move(snapshot),
                                        std::move(copies));
}

std::unique_ptr<Detector> make_snapshot_over(const TensorTable& table, std::vector<HostTensor> live,
                                             std::vector<HostTensor> snapshot) {
  std::vector<ConstHostTensor> tensors;
  for (HostTensor& tensor : live) tensors.push_back({tensor.data, std::move(tensor.strides)});
  return std::make_unique<HostSnapshot>(table, std::move(tensors), std::vector<bool>(live.size()), std::move(snapshot),
                                        Copies{});
}

std::unique_ptr<Detector> make_cast_snapshot(const TensorTable& table, std::vector<HostSourceTensor> live,
                                             std::vector<HostTensor> snapshot) {
  std::vector<ConstHostTensor> tensors;
  std::vector<bool> masters;
  for (std::size_t t = 0; t < live.size(); ++t) {
    masters.push_back(t < table.size() && is_master(table[t], live[t].dtype));
    tensors.push_back(std::move(live[t].memory));
  }
  return std::make_unique<HostSnapshot>(table, std::move(tensors), std::move(masters), std::move(snapshot), Copies{});
}

}  // namespace sparsecast
