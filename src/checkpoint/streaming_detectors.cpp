// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/streaming_detectors.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "codec/kernels.hpp"
#include "core/word.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

/// Most bytes of one read of a tensor: whole tiles of every dtype, small enough to stay in the L2 cache.
constexpr std::uint64_t kWindowBytes = std::uint64_t{256} << 10;
static_assert(kWindowBytes % (kTileElems * sizeof(std::uint64_t)) == 0);

/// Per-thread state that is kept between calls. A thread is identified by its workspace.
template <class State>
class PerThread {
 public:
  /// Returns the state of the thread. References stay valid.
  State& of(const TileWorkspace& workspace) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return states_[&workspace];
  }
  void clear() { states_.clear(); }

 private:
  std::mutex mutex_;
  std::map<const TileWorkspace*, State> states_;
};

/// A window of tiles of one tensor that a thread has read. The thread reads tiles roughly in order.
class ReadWindow {
 public:
  /// Returns the bytes of the tensor from `begin` on, at least `bytes` of them, valid until the next call.
  const std::byte* read(const Checkpoint& checkpoint, std::size_t tensor, std::uint64_t begin, std::uint64_t bytes) {
    if (tensor != tensor_ || begin < begin_ || begin + bytes > begin_ + window_.size()) {
      tensor_ = tensor;
      begin_ = begin;
      window_.resize(std::min(kWindowBytes, checkpoint.table()[tensor].bytes() - begin));
      checkpoint.read(tensor, begin, window_);
    }
    return window_.data() + (begin - begin_);
  }

 private:
  std::size_t tensor_ = 0;
  std::uint64_t begin_ = 0;
  Bytes window_;
};

class CheckpointDetector : public TileDetector {
 public:
  CheckpointDetector(const Checkpoint& base, const Checkpoint& target) : base_(base), target_(target) {}

  TileView detect(std::size_t tensor, std::uint64_t first, std::uint32_t count, TileWorkspace& workspace) override {
    const std::size_t size = element_size(base_.table()[tensor].dtype);
    Windows& windows = windows_.of(workspace);
    TileView view;
    view.current = windows.current.read(target_, tensor, first * size, count * size);
    view.old = windows.old.read(base_, tensor, first * size, count * size);
    view.changed = cpu::compare_tile(view.current, view.old, count, size, workspace.positions);
    return view;
  }
  TensorRef current(std::size_t) const override {
    throw Error(ErrorCode::kUsage, "a checkpoint in files is not in memory; its digest is computed from the changes");
  }
  bool knows_old() const noexcept override { return true; }
  void finish() override { windows_.clear(); }

 private:
  struct Windows {
    ReadWindow current;
    ReadWindow old;
  };

  const Checkpoint& base_;
  const Checkpoint& target_;
  PerThread<Windows> windows_;
};

class PatchDetector : public TileDetector {
 public:
  PatchDetector(const Checkpoint& base, TensorPatches patches)
      : base_(base), patches_(std::move(patches)), patch_of_(base.table().size(), patches_.heads.size()) {
    for (std::size_t n = 0; n < patches_.heads.size(); ++n) patch_of_[patches_.heads[n].tensor] = n;
  }

  TileView detect(std::size_t tensor, std::uint64_t first, std::uint32_t count, TileWorkspace& workspace) override {
    const std::size_t size = element_size(base_.table()[tensor].dtype);
    Reading& reading = readings_.of(workspace);
    TileView view;
    view.old = reading.base.read(base_, tensor, first * size, count * size);
    view.current = view.old;
    const std::size_t n = patch_of_[tensor];
    if (n == patches_.heads.size()) return view;
    if (reading.loaded == nullptr || reading.loaded->patch.tensor != tensor) reading.loaded = load(n);
    const TensorPatch& patch = reading.loaded->patch;
    const std::uint64_t begin = lower_bound(patch, first);
    const std::uint64_t end = lower_bound(patch, first + count);
    if (begin == end) return view;
    std::memcpy(workspace.kept, view.old, count * size);
    for (std::uint64_t i = begin; i < end; ++i) {
      const std::uint64_t at = index(patch, i) - first;
      const std::byte* value = patch.values.data() + i * size;
      if (std::memcmp(workspace.kept + at * size, value, size) == 0) continue;
      std::memcpy(workspace.kept + at * size, value, size);
      workspace.positions[view.changed++] = static_cast<std::uint32_t>(at);
    }
    view.current = workspace.kept;
    return view;
  }
  TensorRef current(std::size_t) const override {
    throw Error(ErrorCode::kUsage, "a sparse step has no full tensors; its result digest is computed from the changes");
  }
  bool knows_old() const noexcept override { return true; }
  void finish() override { readings_.clear(); }

 private:
  struct Loaded {
    Bytes room;
    TensorPatch patch;
  };
  struct Reading {
    ReadWindow base;
    std::shared_ptr<const Loaded> loaded;
  };

  /// Returns a patch that another thread holds, or reads it. Several threads may work on the sections of one tensor.
  std::shared_ptr<const Loaded> load(std::size_t n) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::weak_ptr<const Loaded>& held = held_[n];
    if (std::shared_ptr<const Loaded> loaded = held.lock()) return loaded;
    auto loaded = std::make_shared<Loaded>();
    loaded->patch = patches_.read(n, loaded->room);
    held = loaded;
    return loaded;
  }

  static std::uint64_t index(const TensorPatch& patch, std::uint64_t i) {
    return load_word<std::uint32_t>(patch.indices.data(), i);
  }
  /// Returns the first entry at or after element `element`; the indices are strictly increasing.
  static std::uint64_t lower_bound(const TensorPatch& patch, std::uint64_t element) {
    std::uint64_t low = 0;
    std::uint64_t high = patch.count;
    while (low < high) {
      const std::uint64_t middle = low + (high - low) / 2;
      if (index(patch, middle) < element) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  const Checkpoint& base_;
  TensorPatches patches_;
  std::vector<std::size_t> patch_of_;  ///< Index of the patch of each tensor; patches_.heads.size() if there is none.
  PerThread<Reading> readings_;
  std::mutex mutex_;
  std::map<std::size_t, std::weak_ptr<const Loaded>> held_;
};

}  // namespace

std::unique_ptr<TileDetector> make_checkpoint_detector(const Checkpoint& base, const Checkpoint& target) {
  return std::make_unique<CheckpointDetector>(base, target);
}

std::unique_ptr<TileDetector> make_patch_detector(const Checkpoint& base, TensorPatches patches) {
  return std::make_unique<PatchDetector>(base, std::move(patches));
}

}  // namespace sparsecast
