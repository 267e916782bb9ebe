// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/streaming_detectors.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "core/word.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

constexpr std::uint64_t kReleaseEveryBytes = std::uint64_t{8} << 20;

class ReleasingDetector : public TileDetector {
 public:
  ReleasingDetector(std::unique_ptr<TileDetector> inner, std::vector<const Checkpoint*> checkpoints)
      : inner_(std::move(inner)), checkpoints_(std::move(checkpoints)) {}

  TileView detect(std::size_t tensor, std::uint64_t first, std::uint32_t count, TileWorkspace& workspace) override {
    const std::uint64_t size = element_size(checkpoints_.front()->table()[tensor].dtype);
    pass(run_of(workspace), tensor, first * size, (first + count) * size);
    return inner_->detect(tensor, first, count, workspace);
  }
  TensorRef current(std::size_t tensor) const override { return inner_->current(tensor); }
  bool knows_old() const noexcept override { return inner_->knows_old(); }
  void finish() override {
    for (auto& [workspace, run] : runs_) release(run);
    runs_.clear();
    inner_->finish();
  }

 private:
  /// Bytes that one thread has asked for since it last let go. Its last tile may still be in use.
  struct ReadRun {
    std::size_t tensor = 0;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  /// Returns the run of the thread that owns this workspace; references into the map stay valid.
  ReadRun& run_of(const TileWorkspace& workspace) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return runs_[&workspace];
  }

  /// A thread that asks for its next tile is done with those before.
  void pass(ReadRun& run, std::size_t tensor, std::uint64_t begin, std::uint64_t end) const {
    const bool goes_on = run.tensor == tensor && run.end == begin;
    if (!goes_on || begin - run.begin >= kReleaseEveryBytes) {
      release(run);
      run = {tensor, begin, begin};
    }
    run.end = end;
  }

  void release(const ReadRun& run) const {
    if (run.end == run.begin) return;
    for (const Checkpoint* checkpoint : checkpoints_) checkpoint->release(run.tensor, run.begin, run.end - run.begin);
  }

  std::unique_ptr<TileDetector> inner_;
  std::vector<const Checkpoint*> checkpoints_;
  std::mutex mutex_;
  std::map<const TileWorkspace*, ReadRun> runs_;
};

class SparseStepDetector : public TileDetector {
 public:
  SparseStepDetector(const Checkpoint& base, std::vector<SparseStep::Entry> entries)
      : table_(base.table()), base_(base.tensors()), entries_(std::move(entries)), entry_of_(table_.size(), nullptr) {
    for (const SparseStep::Entry& entry : entries_) entry_of_[entry.tensor] = &entry;
  }

  TileView detect(std::size_t tensor, std::uint64_t first, std::uint32_t count, TileWorkspace& workspace) override {
    const std::size_t size = element_size(table_[tensor].dtype);
    TileView view;
    view.old = base_[tensor].data() + first * size;
    view.current = view.old;
    if (entry_of_[tensor] == nullptr) return view;
    const SparseStep::Entry& entry = *entry_of_[tensor];
    const std::uint64_t begin = lower_bound(entry, first);
    const std::uint64_t end = lower_bound(entry, first + count);
    if (begin == end) return view;
    std::memcpy(workspace.kept, view.old, count * size);
    for (std::uint64_t i = begin; i < end; ++i) {
      const std::uint64_t at = index(entry, i) - first;
      const std::byte* value = entry.values.data() + i * size;
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

 private:
  static std::uint64_t index(const SparseStep::Entry& entry, std::uint64_t i) {
    return load_word<std::uint32_t>(entry.indices.data(), i);
  }
  /// Returns the first entry at or after element `element`; the indices are strictly increasing.
  static std::uint64_t lower_bound(const SparseStep::Entry& entry, std::uint64_t element) {
    std::uint64_t low = 0;
    std::uint64_t high = entry.count;
    while (low < high) {
      const std::uint64_t middle = low + (high - low) / 2;
      if (index(entry, middle) < element) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  const TensorTable& table_;
  std::vector<ConstBytes> base_;
  std::vector<SparseStep::Entry> entries_;
  std::vector<const SparseStep::Entry*> entry_of_;
};

}  // namespace

std::unique_ptr<TileDetector> make_releasing_detector(std::unique_ptr<TileDetector> inner,
                                                      std::vector<const Checkpoint*> checkpoints) {
  return std::make_unique<ReleasingDetector>(std::move(inner), std::move(checkpoints));
}

std::unique_ptr<TileDetector> make_sparse_step_detector(const Checkpoint& base, const SparseStep& step) {
  return std::make_unique<SparseStepDetector>(base, step.entries());
}

std::unique_ptr<TileDetector> make_patch_detector(const Checkpoint& base, std::vector<TensorPatch> patches) {
  return std::make_unique<SparseStepDetector>(base, std::move(patches));
}

}  // namespace sparsecast
