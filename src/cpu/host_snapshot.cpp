// The CPU detectors that compare with a snapshot of what receivers hold: their own copy, or the caller's memory.

#include <algorithm>

#include "core/tensor_view.hpp"
#include "core/word.hpp"
#include "cpu/detector_parts.hpp"
#include "cpu/kernels.hpp"
#include "sparsecast/detector.hpp"

namespace sparsecast {
namespace {

using Copies = std::vector<std::vector<std::byte>>;

std::uint32_t* compare_elements(const std::byte* current, std::int64_t current_step, const std::byte* old,
                                std::int64_t old_step, std::uint32_t first, std::uint32_t count, std::size_t size,
                                std::uint32_t* out) {
  return with_word(size, [&]<class T>() {
    for (std::uint32_t i = 0; i < count; ++i) {
      *out = first + i;  // Kept only where the bits differ: changes are random, and a branch would be too.
      out += load_word<T>(current) != load_word<T>(old) ? 1 : 0;
      current += current_step * static_cast<std::int64_t>(sizeof(T));
      old += old_step * static_cast<std::int64_t>(sizeof(T));
    }
    return out;
  });
}

class HostSnapshot : public Detector {
 public:
  /// `copies` may own the snapshot's memory.
  HostSnapshot(const TensorTable& table, std::vector<ConstHostTensor> live, std::vector<HostTensor> snapshot,
               Copies copies)
      : sizes_(element_sizes(table)),
        live_(std::move(live)),
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
    view.current_view = live.view.get();
    view.old_view = snapshot.view.get();
    view.current = live.view != nullptr ? live.data : live.data + first * size;
    view.refresh = snapshot.view != nullptr ? snapshot.data : snapshot.data + first * size;
    view.old = view.refresh;
    view.changed = live.view == nullptr && snapshot.view == nullptr
                       ? cpu::compare_tile(view.current, view.old, count, size, workspace.positions)
                       : compare_runs(live, snapshot, size, first, count, workspace.positions);
    return view;
  }
  ConstHostTensor current(std::size_t tensor) const override { return live_[tensor]; }
  std::span<const HostTensor> snapshot() const noexcept override { return snapshot_; }
  bool knows_old() const noexcept override { return true; }

 private:
  /// Runs of the innermost dimension; those of the two memories need not end together.
  static std::uint32_t compare_runs(const TensorView& live, const TensorView& snapshot, std::size_t size,
                                    std::uint64_t first, std::uint32_t count, std::uint32_t* positions) {
    ElementWalk live_walk(live.view);
    ElementWalk snapshot_walk(snapshot.view);
    std::uint32_t* out = positions;
    for (std::uint32_t at = 0; at < count;) {
      const auto bytes = static_cast<std::int64_t>(size);
      const std::byte* current = live.data + live_walk.offset(first + at) * bytes;
      const std::byte* old = snapshot.data + snapshot_walk.offset(first + at) * bytes;
      const auto length = static_cast<std::uint32_t>(
          std::min<std::uint64_t>({live_walk.left(first + at), snapshot_walk.left(first + at), count - at}));
      // Below that, what a call costs outweighs its vectors.
      constexpr std::uint32_t kShortRun = 32;
      if (length >= kShortRun && live_walk.step() == 1 && snapshot_walk.step() == 1) {
        const std::uint32_t found = cpu::compare_tile(current, old, length, size, out);
        for (std::uint32_t i = 0; i < found; ++i) out[i] += at;
        out += found;
      } else {
        out = compare_elements(current, live_walk.step(), old, snapshot_walk.step(), at, length, size, out);
      }
      at += length;
    }
    return static_cast<std::uint32_t>(out - positions);
  }

  std::vector<std::size_t> sizes_;
  std::vector<ConstHostTensor> live_;
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
  return std::make_unique<HostSnapshot>(table, std::move(tensors), std::move(snapshot), std::move(copies));
}

std::unique_ptr<Detector> make_snapshot_over(const TensorTable& table, std::vector<HostTensor> live,
                                             std::vector<HostTensor> snapshot) {
  std::vector<ConstHostTensor> tensors;
  for (HostTensor& tensor : live) tensors.push_back({tensor.data, std::move(tensor.strides)});
  return std::make_unique<HostSnapshot>(table, std::move(tensors), std::move(snapshot), Copies{});
}

}  // namespace sparsecast
