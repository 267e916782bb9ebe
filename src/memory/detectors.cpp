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

/// Number of elements of one detect() call. Large enough that the call costs little, and small enough that the
/// processor keeps prefetching the arrays while changes are encoded (bench/results).
constexpr std::uint32_t kDetectorPart = 2048;

/// Returns the bytes of one element of each tensor.
std::vector<std::size_t> element_sizes(const TensorTable& table) {
  std::vector<std::size_t> sizes;
  sizes.reserve(table.size());
  for (const TensorSpec& spec : table) sizes.push_back(element_size(spec.dtype));
  return sizes;
}

class CompareDetector : public TileDetector {
 public:
  CompareDetector(const TensorTable& table, const std::vector<ConstBytes>& current, const std::vector<ConstBytes>& base)
      : sizes_(element_sizes(table)), current_(refs_to(table, current)), base_(refs_to(table, base)) {}

  std::uint32_t part() const noexcept override { return kDetectorPart; }
  TileView detect(std::size_t tensor, std::uint64_t first, std::uint32_t count, TileWorkspace& workspace) override {
    const std::size_t size = sizes_[tensor];
    TileView view;
    view.current = current_[tensor].data + first * size;
    view.old = base_[tensor].data + first * size;
    view.changed = cpu::compare_tile(view.current, view.old, count, size, workspace.positions);
    return view;
  }
  TensorRef current(std::size_t tensor) const override { return current_[tensor]; }
  bool knows_old() const noexcept override { return true; }

 private:
  std::vector<std::size_t> sizes_;
  std::vector<TensorRef> current_;
  std::vector<TensorRef> base_;
};

class FusedCast : public TileDetector {
 public:
  /// Takes tensors that check_cast has checked.
  FusedCast(std::vector<TensorRef> masters, std::vector<TensorRef> bf16)
      : masters_(std::move(masters)), bf16_(std::move(bf16)) {}

  std::uint32_t part() const noexcept override { return kDetectorPart; }
  TileView detect(std::size_t tensor, std::uint64_t first, std::uint32_t count, TileWorkspace& workspace) override {
    TileView view;
    std::byte* const bf16 = bf16_[tensor].data + first * element_size(bf16_[tensor].dtype);
    view.current = bf16;
    view.old = workspace.kept;
    if (masters_[tensor].data == nullptr) return view;
    view.changed =
        cpu::cast_tile(masters_[tensor].data + first * 4, count, bf16, bf16, workspace.kept, workspace.positions);
    return view;
  }
  TensorRef current(std::size_t tensor) const override { return bf16_[tensor]; }
  bool knows_old() const noexcept override { return true; }
  bool consumes_changes() const noexcept override { return true; }

 private:
  std::vector<TensorRef> masters_;
  std::vector<TensorRef> bf16_;
};

class MaskDetector : public TileDetector {
 public:
  MaskDetector(std::shared_ptr<const TensorTable> table, std::vector<TensorRef> live);

  void mark(std::size_t tensor, const std::uint64_t* words, CUstream_st* stream) override;
  TileView detect(std::size_t tensor, std::uint64_t first, std::uint32_t count, TileWorkspace& workspace) override;
  TensorRef current(std::size_t tensor) const override { return live_[tensor]; }
  bool knows_old() const noexcept override { return false; }
  void finish() override { flags_.swap(in_flight_); }
  void committed() override;
  void aborted() override;

 private:
  using Masks = std::vector<std::vector<std::uint64_t>>;

  std::shared_ptr<const TensorTable> table_;
  std::vector<TensorRef> live_;
  Masks flags_;      ///< Elements marked since the last publish.
  Masks in_flight_;  ///< Flags taken by the publish that is pending.
};

MaskDetector::MaskDetector(std::shared_ptr<const TensorTable> table, std::vector<TensorRef> live)
    : table_(std::move(table)), live_(std::move(live)) {
  for (const TensorSpec& spec : *table_) flags_.emplace_back((spec.elements() + 63) / 64);
  in_flight_ = flags_;
}

void MaskDetector::mark(std::size_t tensor, const std::uint64_t* words, CUstream_st* stream) {
  if (tensor >= flags_.size()) {
    throw Error(ErrorCode::kUsage, fmt::format("tensor {} of a table of {}", tensor, flags_.size()));
  }
  const std::string where = fmt::format("tensor '{}'", (*table_)[tensor].name);
  if (stream != nullptr) throw Error(ErrorCode::kUsage, "a stream is for tensors on a device", where);
  std::vector<std::uint64_t>& mask = flags_[tensor];
  if (mask.empty()) return;
  if (words == nullptr) throw Error(ErrorCode::kUsage, "the mask is null", where);
  const std::uint64_t tail = (*table_)[tensor].elements() % 64;
  if (tail != 0 && (words[mask.size() - 1] >> tail) != 0) {
    throw Error(ErrorCode::kUsage, "bits beyond the last element are set", where);
  }
  for (std::size_t w = 0; w < mask.size(); ++w) mask[w] |= words[w];
}

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
  view.current = live_[tensor].data + first * element_size(live_[tensor].dtype);
  view.changed = cpu::expand_tile(flags_[tensor].data() + first / 64, count, workspace.positions);
  return view;
}

using Copies = std::vector<std::vector<std::byte>>;

/// One run of elements in live memory and in the snapshot, each with a constant step.
struct Runs {
  const std::byte* current = nullptr;
  const std::byte* old = nullptr;
  std::int64_t current_step = 1;  ///< Step in elements.
  std::int64_t old_step = 1;
  std::uint32_t first = 0;  ///< Index of the run's first element in the detect() call.
  std::uint32_t count = 0;

  /// Returns true when the run is contiguous in both memories, and long enough that the cost of a call is small
  /// compared with the vector work.
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

class HostSnapshot : public TileDetector {
 public:
  /// `copies` may own the snapshot's memory.
  HostSnapshot(const TensorTable& table, std::vector<TensorRef> live, std::vector<TensorRef> snapshot, Copies copies)
      : sizes_(element_sizes(table)),
        live_(std::move(live)),
        snapshot_(std::move(snapshot)),
        copies_(std::move(copies)),
        live_places_(place_read_tensors(table, live_, "live", true)),
        snapshot_places_(place_tensors(table, snapshot_, "snapshot")) {
    for (std::size_t t = 0; t < table.size(); ++t) masters_.push_back(is_master(table[t], live_[t].dtype));
  }

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
      // The parts of a tile are contiguous in `kept`.
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
  TensorRef current(std::size_t tensor) const override { return masters_[tensor] ? snapshot_[tensor] : live_[tensor]; }
  std::span<const TensorRef> snapshot() const noexcept override { return snapshot_; }
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
  std::vector<TensorRef> live_;
  std::vector<bool> masters_;  ///< Live tensors that are fp32 masters of bf16.
  std::vector<TensorRef> snapshot_;
  Copies copies_;
  std::vector<TensorPlace<const std::byte>> live_places_;
  std::vector<TensorPlace<std::byte>> snapshot_places_;
};

/// Returns copies of these tensors' current values, as receivers get them.
Copies copies_of(const TensorTable& table, const std::vector<TensorRef>& live) {
  const auto places = place_read_tensors(table, live, "live", true);
  Copies copies;
  copies.reserve(table.size());
  for (std::size_t t = 0; t < table.size(); ++t) {
    std::byte* const out = copies.emplace_back(static_cast<std::size_t>(table[t].bytes())).data();
    const bool master = is_master(table[t], live[t].dtype);
    const auto size = static_cast<std::int64_t>(element_size(live[t].dtype));
    const std::uint64_t elements = table[t].elements();
    ElementWalk walk(places[t].view.get());
    for (std::uint64_t at = 0; at < elements;) {
      const std::uint64_t run = std::min(walk.left(at), elements - at);
      const std::byte* from = places[t].data + walk.offset(at) * size;
      if (!master && walk.step() == 1) {
        std::memcpy(out + at * static_cast<std::uint64_t>(size), from, run * static_cast<std::uint64_t>(size));
        at += run;
        continue;
      }
      with_word(element_size(table[t].dtype), [&]<class T>() {
        for (std::uint64_t i = 0; i < run; ++i, from += walk.step() * size) {
          const T bits =
              master ? static_cast<T>(bf16_from_f32_bits(load_word<std::uint32_t>(from))) : load_word<T>(from);
          store_word(out, at + i, bits);
        }
      });
      at += run;
    }
  }
  return copies;
}

}  // namespace

void Detector::mark(std::size_t, const std::uint64_t*, CUstream_st*) {
  throw Error(ErrorCode::kUsage, "only a detector by mask takes marks");
}

std::unique_ptr<TileDetector> make_host_detector(const std::shared_ptr<const TensorTable>& table,
                                                 std::vector<TensorRef> live, DetectorOptions options) {
  const auto refuse = [](const char* what) { throw Error(ErrorCode::kUsage, what); };
  if (options.pinned) refuse("a pinned snapshot is for tensors on a device");
  switch (options.by) {
    case Detection::kSnapshot: {
      if (!options.held.empty() || table->size() == 0) {
        return std::make_unique<HostSnapshot>(*table, std::move(live), std::move(options.held), Copies{});
      }
      Copies copies = copies_of(*table, live);
      std::vector<TensorRef> snapshot;
      for (std::size_t t = 0; t < table->size(); ++t) snapshot.push_back(ref_to((*table)[t], copies[t].data()));
      return std::make_unique<HostSnapshot>(*table, std::move(live), std::move(snapshot), std::move(copies));
    }
    case Detection::kFusedCast: {
      check_cast_masters(*table, live);
      static_cast<void>(place_tensors(*table, options.held, "bf16"));
      require_contiguous(*table, live, "a fused cast");
      require_contiguous(*table, options.held, "a fused cast");
      for (std::size_t t = 0; t < table->size(); ++t) {
        if (live[t].data == nullptr || reinterpret_cast<std::uintptr_t>(options.held[t].data) % 2 == 0) continue;
        throw Error(ErrorCode::kUsage, "the bf16 tensor is not aligned to its elements",
                    fmt::format("tensor '{}'", (*table)[t].name));
      }
      return std::make_unique<FusedCast>(std::move(live), std::move(options.held));
    }
    case Detection::kMask: {
      if (!options.held.empty()) refuse("a mask has no snapshot");
      static_cast<void>(place_read_tensors(*table, live, "live"));
      require_contiguous(*table, live, "a mask");
      return std::make_unique<MaskDetector>(table, std::move(live));
    }
  }
  throw Error(ErrorCode::kUsage, "there is no such way to detect changes");
}

std::unique_ptr<TileDetector> make_compare_detector(const TensorTable& table, const std::vector<ConstBytes>& current,
                                                    const std::vector<ConstBytes>& base) {
  return std::make_unique<CompareDetector>(table, current, base);
}

}  // namespace sparsecast
