// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <mutex>
#include <optional>

#include "codec/apply.hpp"
#include "codec/nan_masked.hpp"
#include "codec/record_layout.hpp"
#include "core/parallel.hpp"
#include "core/tensor_view.hpp"
#include "sync/subscriber_backend.hpp"

namespace sparsecast {
namespace {

struct StagedFrame {
  StagedFrame(ConstBytes record, const DeltaHeader& header, const TensorTable& table)
      : bytes(record.begin(), record.end()), reader(bytes, header, table) {}
  StagedFrame(const StagedFrame&) = delete;
  StagedFrame& operator=(const StagedFrame&) = delete;

  Bytes bytes;
  FrameReader reader;
};
using StagedFrames = std::map<std::uint32_t, std::unique_ptr<StagedFrame>>;  ///< Frames by sequence number.

/// One task of an apply: consecutive blocks of one frame.
struct BlockRun {
  const FrameReader* frame = nullptr;
  std::size_t begin = 0;
  std::size_t end = 0;
  Bytes replaced;  ///< Raw values only: the bits that the apply overwrote.
};

constexpr std::size_t kBlocksPerRun = 64;

class HostSubscriberBackend final : public SubscriberBackend {
 public:
  HostSubscriberBackend(const TensorTable& table, std::vector<HostTensor> live, int threads);

  std::vector<StateDigest> digests(std::size_t first, std::size_t count) override;
  void begin(const DeltaHeader& header) override;
  void add(const FrameHeader& frame, ConstBytes record) override;
  void complete() override;
  void discard() noexcept override {
    nan_masked_.reset();
    staged_.clear();
  }
  std::vector<StateDigest> apply(const ApplyOrder& order) override;
  std::vector<StateDigest> roll_back() override { return run(Direction::kInverse); }
  NanMasked prepare_nan_masked() override;
  void load_nan_masked(const std::vector<std::size_t>& tensors, const NanMaskedLoader& load,
                       const ApplyOrder& order) override;

 private:
  void cut_runs();
  std::vector<StateDigest> run(Direction direction);

  const TensorTable& table_;
  std::vector<HostTensor> live_;
  std::vector<TensorPlace<std::byte>> places_;  ///< Places of the tensors in `live_`.
  int threads_;
  DeltaHeader header_;
  StagedFrames staged_;
  std::optional<NanMaskedDelta> nan_masked_;  ///< NaN-masked form of the staged delta.
  StagedFrames applied_;
  std::vector<BlockRun> runs_;  ///< Runs of the applied frames.
};

HostSubscriberBackend::HostSubscriberBackend(const TensorTable& table, std::vector<HostTensor> live, int threads)
    : table_(table), live_(std::move(live)), places_(place_tensors(table, live_, "live")), threads_(threads) {}

std::vector<StateDigest> HostSubscriberBackend::digests(std::size_t first, std::size_t count) {
  const auto begin = places_.begin() + static_cast<std::ptrdiff_t>(first);
  const std::vector<TensorView> views(begin, begin + static_cast<std::ptrdiff_t>(count));
  return digest_tensors(table_, first, views, threads_);
}

void HostSubscriberBackend::begin(const DeltaHeader& header) {
  runs_.clear();
  applied_.clear();
  discard();
  header_ = header;
}

void HostSubscriberBackend::add(const FrameHeader& frame, ConstBytes record) {
  auto staged = std::make_unique<StagedFrame>(record, header_, table_);
  ApplyScratch scratch;
  for (const BlockRef& block : staged->reader.blocks()) {
    try {
      validate_block(block, table_[block.tensor].dtype, scratch);
    } catch (const Error& error) {
      throw error.within(describe(staged->reader.header(), block, table_));
    }
  }
  staged_.emplace(frame.sequence, std::move(staged));
}

void HostSubscriberBackend::complete() {
  const BlockRef* previous = nullptr;
  for (const auto& [sequence, frame] : staged_) {
    const std::vector<BlockRef>& blocks = frame->reader.blocks();
    if (previous != nullptr && !follows(*previous, blocks.front())) {
      throw Error(ErrorCode::kCorrupt, "blocks of two frames are out of order or overlap",
                  describe(frame->reader.header(), blocks.front(), table_));
    }
    previous = &blocks.back();
  }
}

std::vector<StateDigest> HostSubscriberBackend::apply(const ApplyOrder&) {
  applied_ = std::move(staged_);
  discard();
  cut_runs();
  return run(Direction::kForward);
}

SubscriberBackend::NanMasked HostSubscriberBackend::prepare_nan_masked() {
  std::vector<const FrameReader*> frames;
  for (const auto& [sequence, frame] : staged_) frames.push_back(&frame->reader);
  std::vector<LiveElements> live;
  for (const HostTensor& tensor : live_) live.push_back({tensor.data, tensor.strides});
  nan_masked_.emplace(table_, std::move(frames), std::move(live), Direction::kForward, threads_);
  return {nan_masked_->tensors(), sum(nan_masked_->digest_changes())};
}

void HostSubscriberBackend::load_nan_masked(const std::vector<std::size_t>& tensors, const NanMaskedLoader& load,
                                            const ApplyOrder&) {
  Bytes full;
  for (const std::size_t t : tensors) {
    full.resize(std::max<std::size_t>(full.size(), table_[t].bytes()));
    nan_masked_->expand(t, TensorBytes(full).first(table_[t].bytes()));
    load(t, full.data(), nullptr);
  }
}

void HostSubscriberBackend::cut_runs() {
  runs_.clear();
  for (const auto& [sequence, frame] : applied_) {
    const std::size_t blocks = frame->reader.blocks().size();
    for (std::size_t begin = 0; begin < blocks; begin += kBlocksPerRun) {
      runs_.push_back({&frame->reader, begin, std::min(begin + kBlocksPerRun, blocks), {}});
    }
  }
}

/// Applies all runs, remembering what raw blocks replace, or takes them back.
std::vector<StateDigest> HostSubscriberBackend::run(Direction direction) {
  std::vector<StateDigest> changes(table_.size());
  std::mutex changes_mutex;
  std::vector<ApplyScratch> scratch(static_cast<std::size_t>(resolve_threads(threads_)));
  parallel_for(threads_, runs_.size(), [&](std::size_t worker, std::size_t i) {
    BlockRun& blocks = runs_[i];
    std::size_t restored = 0;
    StateDigest change;
    DigestIndex index;
    for (std::size_t b = blocks.begin; b < blocks.end; ++b) {
      const BlockRef& block = blocks.frame->blocks()[b];
      const bool first_of_tensor = b == blocks.begin || blocks.frame->blocks()[b - 1].tensor != block.tensor;
      if (first_of_tensor) index = digest_index_of(table_, block.tensor);
      const auto& place = places_[block.tensor];
      ApplyTarget target = target_in(place.data, place.view.get(), table_[block.tensor].dtype, block);
      target.index = &index;
      target.change = &change;
      const bool raw = block.coding.values == ValueCodec::kRaw;
      if (direction == Direction::kInverse && raw) {
        restored += restore_block(block, target, ConstBytes(blocks.replaced).subspan(restored), scratch[worker]);
      } else {
        if (raw) target.replaced = &blocks.replaced;
        apply_block(block, target, direction, scratch[worker]);
      }
      const bool last_of_tensor = b + 1 == blocks.end || blocks.frame->blocks()[b + 1].tensor != block.tensor;
      if (last_of_tensor) {
        const std::lock_guard<std::mutex> lock(changes_mutex);
        changes[block.tensor] += change;
        change = {};
      }
    }
  });
  return changes;
}

}  // namespace

std::unique_ptr<SubscriberBackend> make_host_subscriber_backend(const TensorTable& table, std::vector<HostTensor> live,
                                                                int threads) {
  return std::make_unique<HostSubscriberBackend>(table, std::move(live), threads);
}

}  // namespace sparsecast
