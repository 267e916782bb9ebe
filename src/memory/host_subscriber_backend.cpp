// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "codec/apply.hpp"
#include "codec/nan_masked.hpp"
#include "codec/record_layout.hpp"
#include "core/parallel.hpp"
#include "core/tensor_view.hpp"
#include "memory/subscriber_backend.hpp"

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

/// Frames of one stream's delta.
struct StagedStream {
  DeltaHeader header;
  StagedFrames frames;
};

/// One task of an apply: consecutive blocks of one frame.
struct BlockRun {
  std::size_t stream = 0;
  const FrameReader* frame = nullptr;
  std::size_t begin = 0;
  std::size_t end = 0;
  Bytes replaced;  ///< Bits that the apply overwrote; kept for raw values only.
};

constexpr std::size_t kBlocksPerRun = 64;

class HostSubscriberBackend final : public SubscriberBackend {
 public:
  HostSubscriberBackend(const JoinedTables& tables, std::vector<TensorRef> live, int threads);

  std::vector<StateDigest> digests(std::size_t first, std::size_t count) override;
  void begin() override;
  void begin_stream(std::size_t stream, const DeltaHeader& header) override { staged_[stream] = {header, {}}; }
  void add(std::size_t stream, const FrameHeader& frame, ConstBytes record) override;
  void complete() override;
  void discard() noexcept override {
    nan_masked_.reset();
    for (StagedStream& stream : staged_) stream.frames.clear();
  }
  std::byte* reserve(std::uint64_t bytes) override {
    begin();
    reserved_.resize(bytes);
    return reserved_.data();
  }
  std::vector<StateDigest> apply(const ApplyOrder& order) override;
  std::vector<StateDigest> roll_back() override { return run(Direction::kInverse); }
  NanMasked prepare_nan_masked() override;
  void load_nan_masked(const std::vector<std::size_t>& tensors, const NanMaskedLoader& load,
                       const ApplyOrder& order) override;

 private:
  void cut_runs();
  std::vector<StateDigest> run(Direction direction);

  const JoinedTables tables_;
  std::vector<TensorRef> live_;
  std::vector<TensorPlace<std::byte>> places_;  ///< Places of the tensors in `live_`.
  int threads_;
  Bytes reserved_;
  std::vector<StagedStream> staged_;
  std::optional<NanMaskedDelta> nan_masked_;  ///< NaN-masked form of the only stream's staged delta.
  std::vector<StagedStream> applied_;         ///< Parallel to the streams, or empty.
  std::vector<BlockRun> runs_;                ///< Runs of the applied frames.
};

HostSubscriberBackend::HostSubscriberBackend(const JoinedTables& tables, std::vector<TensorRef> live, int threads)
    : tables_(tables),
      live_(std::move(live)),
      places_(place_tensors(tables.all(), live_, "live")),
      threads_(threads),
      staged_(tables.streams()) {}

std::vector<StateDigest> HostSubscriberBackend::digests(std::size_t first, std::size_t count) {
  const auto begin = places_.begin() + static_cast<std::ptrdiff_t>(first);
  const std::vector<TensorView> views(begin, begin + static_cast<std::ptrdiff_t>(count));
  return digest_tensors(tables_.all(), first, views, threads_);
}

void HostSubscriberBackend::begin() {
  runs_.clear();
  applied_.clear();
  discard();
}

void HostSubscriberBackend::add(std::size_t stream, const FrameHeader& frame, ConstBytes record) {
  const TensorTable& table = *tables_.table(stream);
  auto staged = std::make_unique<StagedFrame>(record, staged_[stream].header, table);
  const std::size_t first_tensor = tables_.first(stream);
  staged->reader.resolve_context(table, [&](const BlockRef& block) {
    const auto& place = places_[first_tensor + block.tensor];
    const ApplyTarget target = target_in(place.data, place.view.get(), table[block.tensor].dtype, block);
    return OldBits{target.window, target.dtype, target.view};
  });
  ApplyScratch scratch;
  for (const BlockRef& block : staged->reader.blocks()) {
    try {
      validate_block(block, table[block.tensor].dtype, scratch);
    } catch (const Error& error) {
      throw error.within(describe(staged->reader.header(), block, table));
    }
  }
  staged_[stream].frames.emplace(frame.sequence, std::move(staged));
}

void HostSubscriberBackend::complete() {
  for (std::size_t s = 0; s < staged_.size(); ++s) {
    const BlockRef* previous = nullptr;
    for (const auto& [sequence, frame] : staged_[s].frames) {
      const std::vector<BlockRef>& blocks = frame->reader.blocks();
      if (previous != nullptr && !follows(*previous, blocks.front())) {
        throw Error(ErrorCode::kCorrupt, "blocks of two frames are out of order or overlap",
                    describe(frame->reader.header(), blocks.front(), *tables_.table(s)));
      }
      previous = &blocks.back();
    }
  }
}

std::vector<StateDigest> HostSubscriberBackend::apply(const ApplyOrder&) {
  applied_ = std::exchange(staged_, std::vector<StagedStream>(tables_.streams()));
  discard();
  cut_runs();
  return run(Direction::kForward);
}

SubscriberBackend::NanMasked HostSubscriberBackend::prepare_nan_masked() {
  std::vector<const FrameReader*> frames;
  for (const auto& [sequence, frame] : staged_.front().frames) frames.push_back(&frame->reader);
  nan_masked_.emplace(tables_.all(), std::move(frames), live_, Direction::kForward, threads_);
  return {nan_masked_->tensors(), sum(nan_masked_->digest_changes())};
}

void HostSubscriberBackend::load_nan_masked(const std::vector<std::size_t>& tensors, const NanMaskedLoader& load,
                                            const ApplyOrder&) {
  Bytes full;
  for (const std::size_t t : tensors) {
    const std::uint64_t bytes = tables_.all()[t].bytes();
    full.resize(std::max<std::size_t>(full.size(), bytes));
    nan_masked_->expand(t, MutableBytes(full).first(bytes));
    load(t, full.data(), nullptr);
  }
}

void HostSubscriberBackend::cut_runs() {
  runs_.clear();
  for (std::size_t s = 0; s < applied_.size(); ++s) {
    for (const auto& [sequence, frame] : applied_[s].frames) {
      const std::size_t blocks = frame->reader.blocks().size();
      for (std::size_t begin = 0; begin < blocks; begin += kBlocksPerRun) {
        runs_.push_back({s, &frame->reader, begin, std::min(begin + kBlocksPerRun, blocks), {}});
      }
    }
  }
}

/// Applies all runs, keeping the bits that raw blocks replace, or rolls them back.
std::vector<StateDigest> HostSubscriberBackend::run(Direction direction) {
  const TensorTable& table = tables_.all();
  std::vector<StateDigest> changes(table.size());
  std::mutex changes_mutex;
  std::vector<ApplyScratch> scratch(static_cast<std::size_t>(resolve_threads(threads_)));
  parallel_for(threads_, runs_.size(), [&](std::size_t worker, std::size_t i) {
    BlockRun& blocks = runs_[i];
    const std::size_t first_tensor = tables_.first(blocks.stream);
    std::size_t restored = 0;
    StateDigest change;
    DigestIndex index;
    for (std::size_t b = blocks.begin; b < blocks.end; ++b) {
      const BlockRef& block = blocks.frame->blocks()[b];
      const bool first_of_tensor = b == blocks.begin || blocks.frame->blocks()[b - 1].tensor != block.tensor;
      const std::size_t tensor = first_tensor + block.tensor;
      if (first_of_tensor) index = digest_index_of(table, tensor);
      const auto& place = places_[tensor];
      ApplyTarget target = target_in(place.data, place.view.get(), table[tensor].dtype, block);
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
        changes[tensor] += change;
        change = {};
      }
    }
  });
  return changes;
}

}  // namespace

std::unique_ptr<SubscriberBackend> make_host_subscriber_backend(const JoinedTables& tables, std::vector<TensorRef> live,
                                                                int threads) {
  return std::make_unique<HostSubscriberBackend>(tables, std::move(live), threads);
}

}  // namespace sparsecast
