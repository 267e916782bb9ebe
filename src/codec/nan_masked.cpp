// SPDX-License-Identifier: Apache-2.0
#include "codec/nan_masked.hpp"

#include <fmt/format.h>

#include <mutex>

#include "codec/codec_common.hpp"
#include "core/digest_changes.hpp"
#include "core/masked_copy.hpp"
#include "core/parallel.hpp"
#include "core/tensor_view.hpp"
#include "core/trace.hpp"
#include "core/word.hpp"

namespace sparsecast {
namespace {

/// Blocks of a run: a task of one thread.
constexpr std::size_t kBlocksPerRun = 64;

std::string name_of(const TensorSpec& spec) { return fmt::format("tensor '{}'", spec.name); }

}  // namespace

NanMaskedDelta::NanMaskedDelta(const TensorTable& table, const std::vector<const FrameReader*>& frames,
                               std::vector<TensorRef> live, Direction direction, int threads)
    : table_(table),
      live_(std::move(live)),
      inverse_(direction == Direction::kInverse),
      threads_(threads),
      runs_(table.size()),
      changes_(table.size()) {
  if (live_.size() != table.size()) {
    throw Error(ErrorCode::kUsage, fmt::format("{} live tensors for a table of {}", live_.size(), table.size()));
  }
  for (std::size_t t = 0; t < table.size(); ++t) views_.push_back(view_of_tensor(table[t], live_[t].strides));
  find_runs(frames);
  std::vector<std::pair<std::size_t, const Run*>> tasks;
  for (std::size_t t = 0; t < table.size(); ++t) {
    if (runs_[t].empty()) continue;
    tensors_.push_back(t);
    for (const Run& run : runs_[t]) tasks.emplace_back(t, &run);
    try {
      require_nan_fillable(table[t].dtype);
    } catch (const Error& error) {
      throw error.within(name_of(table[t]));
    }
  }
  const TraceRange<"expand.check"> range;
  std::mutex changes_mutex;
  std::vector<ApplyScratch> scratch(static_cast<std::size_t>(resolve_threads(threads_)));
  parallel_for(threads_, tasks.size(), [&](std::size_t worker, std::size_t i) {
    const auto& [tensor, run] = tasks[i];
    const StateDigest change = check_run(*run, tensor, scratch[worker]);
    const std::lock_guard<std::mutex> lock(changes_mutex);
    changes_[tensor] += change;
  });
}

void NanMaskedDelta::find_runs(const std::vector<const FrameReader*>& frames) {
  for (const FrameReader* frame : frames) {
    const std::vector<BlockRef>& blocks = frame->blocks();
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const std::uint32_t tensor = blocks[b].tensor;
      const bool raw = blocks[b].coding.values == ValueCodec::kRaw;
      if (raw && inverse_) {
        throw Error(ErrorCode::kUsage, "a raw block cannot be inverted without the bits it replaced",
                    name_of(table_[tensor]));
      }
      if (!raw && live_[tensor].data == nullptr) {
        throw Error(ErrorCode::kUsage, "xor and ulp words need the live elements that they refer to",
                    name_of(table_[tensor]));
      }
      std::vector<Run>& runs = runs_[tensor];
      if (runs.empty() || runs.back().frame != frame || b - runs.back().begin == kBlocksPerRun) {
        runs.push_back({frame, b, b});
      }
      runs.back().end = b + 1;
    }
  }
}

/// Calls visit(element, live bits, new bits) for every element that the run names; where live bits are unknown, the new
/// bits are passed instead.
template <class T, class Visit>
void NanMaskedDelta::visit_run(const Run& run, std::size_t tensor, ApplyScratch& scratch, const Visit& visit) const {
  const UlpOrder order = ulp_order(table_[tensor].dtype);
  const std::byte* const live = live_[tensor].data;
  ElementWalk places(live_[tensor].strides.empty() ? nullptr : &views_[tensor]);
  DecodedBlock<T>& decoded = scratch.get<T>();
  for (std::size_t b = run.begin; b < run.end; ++b) {
    const BlockRef& block = run.frame->blocks()[b];
    decode_block(block, decoded);
    for (std::uint32_t i = 0; i < decoded.count; ++i) {
      const std::uint64_t element = block.first_element + (decoded.dense ? i : decoded.positions[i]);
      T old_bits = decoded.coded[i];
      if (live != nullptr) {
        old_bits = load_word<T>(live + places.offset(element) * static_cast<std::int64_t>(sizeof(T)));
      }
      visit(element, old_bits, changed_bits(old_bits, decoded.coded[i], block.coding.values, order, inverse_));
    }
  }
}

StateDigest NanMaskedDelta::check_run(const Run& run, std::size_t tensor, ApplyScratch& scratch) const {
  const NanPattern pattern = nan_pattern(table_[tensor].dtype);
  const DigestIndex index = digest_index_of(table_, tensor);
  ElementWalk indices = index.walk();
  const bool known = live_[tensor].data != nullptr;
  const DigestSum sum = with_word(element_size(table_[tensor].dtype), [&]<class T>() {
    DigestChanges<T> digest(index.key);
    visit_run<T>(run, tensor, scratch, [&](std::uint64_t element, T old_bits, T new_bits) {
      if (is_nan_bits(pattern, new_bits) && !(known && new_bits == old_bits)) {
        throw Error(ErrorCode::kUnsupported,
                    fmt::format("element {} becomes a NaN ({:#x}), which says 'unchanged' in a NaN-masked tensor",
                                element, new_bits),
                    name_of(table_[tensor]));
      }
      if (known) digest.add(index.first + static_cast<std::uint64_t>(indices.offset(element)), old_bits, new_bits);
    });
    return digest.take();
  });
  return StateDigest{{sum.lo, sum.hi}};
}

void NanMaskedDelta::expand(std::size_t tensor, MutableBytes out) const {
  if (tensor >= table_.size()) throw Error(ErrorCode::kUsage, fmt::format("tensor {} of {}", tensor, table_.size()));
  const TensorSpec& spec = table_[tensor];
  if (out.size() != spec.bytes()) {
    throw Error(ErrorCode::kUsage, fmt::format("{} bytes for {}", out.size(), spec.bytes()), name_of(spec));
  }
  const TraceRange<"expand"> range({.bytes = spec.bytes()});
  nan_fill(spec.dtype, out);
  const std::vector<Run>& runs = runs_[tensor];
  std::vector<ApplyScratch> scratch(static_cast<std::size_t>(resolve_threads(threads_)));
  parallel_for(threads_, runs.size(), [&](std::size_t worker, std::size_t i) {
    with_word(element_size(spec.dtype), [&]<class T>() {
      visit_run<T>(runs[i], tensor, scratch[worker],
                   [&](std::uint64_t element, T, T new_bits) { store_word(out.data(), element, new_bits); });
    });
  });
}

}  // namespace sparsecast
