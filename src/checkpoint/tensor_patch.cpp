// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/tensor_patch.hpp"

#include <fmt/format.h>

#include <limits>
#include <tuple>

#include "codec/apply.hpp"
#include "codec/block_coding.hpp"
#include "codec/frame_reader.hpp"
#include "codec/kernels.hpp"
#include "core/tensor_view.hpp"
#include "core/word.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

/// Gathers the patches of one tensor after another.
class PatchGatherer {
 public:
  PatchGatherer(const TensorTable& table, const PatchSink& sink) : table_(table), sink_(sink) {}

  /// Adds an element, whose new bits are at `value`.
  void add(std::size_t tensor, std::uint64_t element, const std::byte* value) {
    if (tensor != tensor_ && count_ != 0) flush();
    tensor_ = tensor;
    if (element > static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max())) {
      throw Error(ErrorCode::kUnsupported, fmt::format("element {} has no int32 index", element),
                  fmt::format("tensor '{}'", table_[tensor].name));
    }
    const auto index = static_cast<std::uint32_t>(element);
    const auto* bytes = reinterpret_cast<const std::byte*>(&index);
    indices_.insert(indices_.end(), bytes, bytes + sizeof(index));
    values_.insert(values_.end(), value, value + element_size(table_[tensor].dtype));
    ++count_;
  }

  void flush() {
    if (count_ == 0) return;
    sink_({tensor_, indices_, values_, count_});
    indices_.clear();
    values_.clear();
    count_ = 0;
  }

 private:
  const TensorTable& table_;
  const PatchSink& sink_;
  std::size_t tensor_ = 0;
  std::uint64_t count_ = 0;
  Bytes indices_;
  Bytes values_;
};

void require_tensors(const TensorTable& table, const TensorReader& tensors) {
  if (tensors.size() != table.size()) throw Error(ErrorCode::kUsage, "the tensors are not those of the table");
  for (std::size_t t = 0; t < table.size(); ++t) {
    if (tensors.bytes(t) != table[t].bytes()) {
      throw Error(ErrorCode::kUsage, "the tensor has another size than in the table",
                  fmt::format("tensor '{}'", table[t].name));
    }
  }
}

/// Gathers the positions that a block names, with their values from the weights after the delta.
void gather_named(const BlockRef& block, ConstBytes weights, std::size_t size, ApplyScratch& scratch,
                  PatchGatherer& out) {
  const auto take = [&](std::uint64_t element) { out.add(block.tensor, element, weights.data() + element * size); };
  with_word(size, [&]<class T>() {
    DecodedBlock<T>& decoded = scratch.get<T>();
    decode_block(block, decoded);
    for (std::uint32_t i = 0; i < decoded.count; ++i) {
      take(block.first_element + (decoded.dense ? i : decoded.positions[i]));
    }
  });
}

/// Applies blocks to windows of the base and gathers the elements that differ.
class ReplayedBlocks {
 public:
  ReplayedBlocks(const TensorTable& table, const TensorReader& base, PatchGatherer& out)
      : table_(table), base_(base), out_(out) {}

  void add(const BlockRef& block) {
    const TensorSpec& spec = table_[block.tensor];
    const std::size_t size = element_size(spec.dtype);
    old_.resize(block.span * size);
    base_.read(block.tensor, block.first_element * size, old_);
    new_ = old_;
    const DigestIndex index = digest_index_of(table_, block.tensor);
    const ApplyTarget target{new_.data(), spec.dtype, nullptr, &index, &change_, nullptr};
    apply_block(block, target, Direction::kForward, scratch_);
    for (std::uint32_t begin = 0; begin < block.span; begin += kTileElems) {
      const std::uint32_t count = std::min(kTileElems, block.span - begin);
      const std::byte* bits = new_.data() + begin * size;
      const std::uint32_t changed = cpu::compare_tile(bits, old_.data() + begin * size, count, size, positions_.data());
      for (std::uint32_t i = 0; i < changed; ++i) {
        out_.add(block.tensor, block.first_element + begin + positions_[i], bits + positions_[i] * size);
      }
    }
  }
  const StateDigest& change() const { return change_; }

 private:
  const TensorTable& table_;
  const TensorReader& base_;
  PatchGatherer& out_;
  ApplyScratch scratch_;
  StateDigest change_;
  Bytes old_;
  Bytes new_;
  /// Larger than a tile, because compare_tile writes past the last position.
  std::vector<std::uint32_t> positions_ = std::vector<std::uint32_t>(kTileElems + 64);
};

}  // namespace

void for_each_patch(const Delta& delta, const TensorTable& table, std::span<const ConstBytes> weights,
                    const PatchSink& sink) {
  require_tensors(table, weights);
  PatchGatherer out(table, sink);
  ApplyScratch scratch;
  for (const Bytes& record : delta.frames) {
    const FrameReader frame(record, delta.info, table);
    for (const BlockRef& block : frame.blocks()) {
      try {
        gather_named(block, weights[block.tensor], element_size(table[block.tensor].dtype), scratch, out);
      } catch (const Error& error) {
        throw error.within(describe(frame.header(), block, table));
      }
    }
  }
  out.flush();
}

void for_each_patch(const DeltaFile& delta, const TensorReader& base, const PatchSink& sink) {
  const TensorTable& table = delta.table();
  require_tensors(table, base);
  PatchGatherer out(table, sink);
  ReplayedBlocks replayed(table, base, out);
  for (std::size_t i = 0; i < delta.frames(); ++i) {
    const Bytes record = delta.frame(i);
    const FrameReader frame(record, delta.header(), table);
    for (const BlockRef& block : frame.blocks()) {
      try {
        replayed.add(block);
      } catch (const Error& error) {
        throw error.within(fmt::format("{}: {}", delta.name(), describe(frame.header(), block, table)));
      }
    }
  }
  out.flush();
  StateDigest predicted = delta.header().base_digest;
  predicted += replayed.change();
  if (!(predicted == delta.commit().result_digest)) {
    throw Error(ErrorCode::kDigestMismatch,
                fmt::format("the delta leads to {}, but its commit record promises {}", to_hex(predicted.value),
                            to_hex(delta.commit().result_digest.value)),
                delta.name());
  }
}

}  // namespace sparsecast
