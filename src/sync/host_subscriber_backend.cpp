#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>

#include "codec/apply.hpp"
#include "codec/nan_masked.hpp"
#include "codec/record_layout.hpp"
#include "core/parallel.hpp"
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
using StagedFrames = std::map<std::uint32_t, std::unique_ptr<StagedFrame>>;  ///< By sequence.

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
  HostSubscriberBackend(const TensorTable& table, std::vector<TensorBytes> live, int threads);

  std::vector<StateDigest> digests(std::size_t first, std::size_t count) override;
  void begin(const DeltaHeader& header) override;
  void add(const FrameHeader& frame, ConstBytes record) override;
  void complete() override;
  void discard() noexcept override {
    nan_masked_.reset();
    staged_.clear();
  }
  std::vector<StateDigest> apply(const ApplyOrder& order) override;
  std::vector<StateDigest> take_back() override { return run(Direction::kInverse); }
  NanMasked prepare_nan_masked() override;
  void load_nan_masked(const std::vector<std::size_t>& tensors, const NanMaskedLoader& load,
                       const ApplyOrder& order) override;

 private:
  void cut_runs();
  std::vector<StateDigest> run(Direction direction);
  ApplyTarget target_of(const BlockRef& block) const;

  const TensorTable& table_;
  std::vector<TensorBytes> live_;
  int threads_;
  DeltaHeader header_;
  StagedFrames staged_;
  std::optional<NanMaskedDelta> nan_masked_;  ///< Of what is staged.
  StagedFrames applied_;
  std::vector<BlockRun> runs_;  ///< Of the applied frames.
};

HostSubscriberBackend::HostSubscriberBackend(const TensorTable& table, std::vector<TensorBytes> live, int threads)
    : table_(table), live_(std::move(live)), threads_(threads) {
  if (live_.size() != table.size()) {
    throw Error(ErrorCode::kUsage, fmt::format("{} live tensors for a table of {}", live_.size(), table.size()));
  }
  for (std::size_t t = 0; t < live_.size(); ++t) {
    if (live_[t].size() == table[t].bytes()) continue;
    throw Error(ErrorCode::kUsage, fmt::format("{} bytes for {}", live_[t].size(), table[t].bytes()),
                fmt::format("tensor '{}'", table[t].name));
  }
}

std::vector<StateDigest> HostSubscriberBackend::digests(std::size_t first, std::size_t count) {
  if (count == table_.size()) {
    return digest_tensors(table_, std::vector<ConstTensorBytes>(live_.begin(), live_.end()), threads_);
  }
  std::vector<StateDigest> out(count);
  parallel_for(threads_, count, [&](std::size_t, std::size_t i) {
    const std::size_t t = first + i;
    out[i] = digest_span(table_.digest_key(t), table_[t].dtype, 0, live_[t]);
  });
  return out;
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
  for (const TensorBytes tensor : live_) live.push_back({tensor.data(), {}});
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

ApplyTarget HostSubscriberBackend::target_of(const BlockRef& block) const {
  const TensorSpec& spec = table_[block.tensor];
  ApplyTarget target;
  target.window = live_[block.tensor].data() + block.first_element * element_size(spec.dtype);
  target.dtype = spec.dtype;
  target.key = table_.digest_key(block.tensor);
  return target;
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
    for (std::size_t b = blocks.begin; b < blocks.end; ++b) {
      const BlockRef& block = blocks.frame->blocks()[b];
      ApplyTarget target = target_of(block);
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

std::unique_ptr<SubscriberBackend> make_host_subscriber_backend(const TensorTable& table, std::vector<TensorBytes> live,
                                                                int threads) {
  return std::make_unique<HostSubscriberBackend>(table, std::move(live), threads);
}

}  // namespace sparsecast
