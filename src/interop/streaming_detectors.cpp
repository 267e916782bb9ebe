#include "interop/streaming_detectors.hpp"

#include <algorithm>
#include <compare>
#include <cstring>
#include <mutex>

#include "core/word.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

constexpr std::uint64_t kReleaseEveryBytes = std::uint64_t{32} << 20;

class ReleasingDetector : public Detector {
 public:
  ReleasingDetector(std::unique_ptr<Detector> inner, std::vector<const Checkpoint*> checkpoints)
      : inner_(std::move(inner)), checkpoints_(std::move(checkpoints)) {}

  TileView detect(std::size_t tensor, std::uint64_t first, std::uint32_t count, TileWorkspace& workspace) override {
    const TileView view = inner_->detect(tensor, first, count, workspace);
    const std::uint64_t size = element_size(checkpoints_.front()->table()[tensor].dtype);
    passed({tensor, (first + count) * size}, count * size);
    return view;
  }
  ConstTensorBytes current(std::size_t tensor) const override { return inner_->current(tensor); }
  bool knows_old() const noexcept override { return inner_->knows_old(); }
  void finish() override { inner_->finish(); }

 private:
  struct Mark {
    std::size_t tensor = 0;
    std::uint64_t byte = 0;
    friend auto operator<=>(const Mark&, const Mark&) = default;
  };

  void passed(const Mark& here, std::uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    furthest_ = std::max(furthest_, here);
    since_release_ += bytes;
    if (since_release_ < kReleaseEveryBytes) return;
    since_release_ = 0;
    release(older_, furthest_);
    // Each range is let go twice: slower threads have touched some of it again after the first time.
    older_ = newer_;
    newer_ = furthest_;
  }

  void release(const Mark& from, const Mark& to) const {
    for (const Checkpoint* checkpoint : checkpoints_) {
      for (std::size_t t = from.tensor; t <= to.tensor; ++t) {
        const std::uint64_t begin = t == from.tensor ? from.byte : 0;
        const std::uint64_t end = t == to.tensor ? to.byte : checkpoint->table()[t].bytes();
        if (end > begin) checkpoint->release(t, begin, end - begin);
      }
    }
  }

  std::unique_ptr<Detector> inner_;
  std::vector<const Checkpoint*> checkpoints_;
  std::mutex mutex_;
  Mark older_;
  Mark newer_;
  Mark furthest_;
  std::uint64_t since_release_ = 0;
};

class SparseStepDetector : public Detector {
 public:
  SparseStepDetector(const Checkpoint& base, const SparseStep& step)
      : table_(base.table()), base_(base.tensors()), entry_of_(base.table().size(), nullptr) {
    for (const SparseStep::Entry& entry : step.entries()) entry_of_[entry.tensor] = &entry;
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
  ConstTensorBytes current(std::size_t) const override {
    throw Error(ErrorCode::kUsage, "a sparse step has no full tensors; its result digest is computed from the changes");
  }
  bool knows_old() const noexcept override { return true; }

 private:
  static std::uint64_t index(const SparseStep::Entry& entry, std::uint64_t i) {
    return load_word<std::uint32_t>(entry.indices.data(), i);
  }
  /// First entry at or after element `element`; the indices are strictly increasing.
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
  std::vector<ConstTensorBytes> base_;
  std::vector<const SparseStep::Entry*> entry_of_;
};

}  // namespace

std::unique_ptr<Detector> make_releasing_detector(std::unique_ptr<Detector> inner,
                                                  std::vector<const Checkpoint*> checkpoints) {
  return std::make_unique<ReleasingDetector>(std::move(inner), std::move(checkpoints));
}

std::unique_ptr<Detector> make_sparse_step_detector(const Checkpoint& base, const SparseStep& step) {
  return std::make_unique<SparseStepDetector>(base, step);
}

}  // namespace sparsecast
