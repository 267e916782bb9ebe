// SPDX-License-Identifier: Apache-2.0
#pragma once

// Decodes the sections of a delta file one after another, and encodes sections, for operations on deltas (compose.cpp,
// cut.cpp).

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "codec/block_coding.hpp"
#include "codec/codec_common.hpp"
#include "codec/frame_reader.hpp"
#include "codec/frame_writer.hpp"
#include "core/word.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

/// Iterates over the blocks of a delta file in order.
class BlockCursor {
 public:
  explicit BlockCursor(const DeltaFile& file) : file_(file) { load(); }

  bool done() const { return !frame_; }
  const BlockRef& block() const { return frame_->blocks()[index_]; }
  std::string where() const {
    return fmt::format("{}: {}", file_.name(), describe(frame_->header(), block(), file_.table()));
  }

  void next() {
    const BlockRef previous = block();
    if (++index_ == frame_->blocks().size()) {
      frame_.reset();
      load();
    }
    if (!done() && !follows(previous, block())) {
      throw Error(ErrorCode::kCorrupt, "blocks are out of order or overlap", where());
    }
  }

 private:
  void load() {
    index_ = 0;
    if (next_frame_ == file_.frames()) return;
    try {
      record_ = file_.frame(next_frame_++);
      frame_.emplace(record_, file_.header(), file_.table());
    } catch (const Error& error) {
      throw error.within(file_.name());
    }
  }

  const DeltaFile& file_;
  std::size_t next_frame_ = 0;
  Bytes record_;  ///< The frame record that `frame_` refers to.
  std::optional<FrameReader> frame_;
  std::size_t index_ = 0;
};

/// Identifier of a section of a tensor; identifiers are ordered as blocks are.
struct SectionId {
  std::uint32_t tensor = 0;
  std::uint32_t section = 0;
  friend auto operator<=>(const SectionId&, const SectionId&) = default;
};

inline SectionId section_of(const BlockRef& block) { return {block.tensor, block.first_tile / kTilesPerSection}; }

/// Changes of one section. Positions are relative to the section's first element.
template <class T>
struct SectionChanges {
  std::vector<std::uint32_t> positions;
  std::vector<T> coded;

  void clear() {
    positions.clear();
    coded.clear();
  }
  void add(std::uint32_t position, T word) {
    positions.push_back(position);
    coded.push_back(word);
  }
};

/// The bits of the elements of one section at one version; advance() brings them to another version. Empty when there
/// is no base and thus no bits are known.
class SectionBits {
 public:
  /// Makes an object that reads the bits of sections from `base`, the tensors at the first version. Nullopt: the object
  /// stays empty.
  explicit SectionBits(std::optional<TensorReader> base) : base_(std::move(base)) {}

  template <class T>
  void load(const SectionId& id, const TensorSpec& spec) {
    if (!base_) return;
    dtype_ = spec.dtype;
    const std::uint64_t begin = std::uint64_t{id.section} * kSectionElems * sizeof(T);
    bits_.resize(std::min<std::uint64_t>(base_->bytes(id.tensor) - begin, kSectionElems * sizeof(T)));
    base_->read(id.tensor, begin, bits_);
  }
  bool known() const { return base_.has_value(); }
  OldBits from(std::uint32_t element, std::size_t element_bytes) const {
    return {bits_.data() + element * element_bytes, dtype_, nullptr};
  }
  template <class T>
  T word(std::uint32_t element) const {
    return load_word<T>(bits_.data(), element);
  }
  template <class T>
  std::uint32_t elements() const {
    return static_cast<std::uint32_t>(bits_.size() / sizeof(T));
  }
  /// Applies changes to the bits; with `inverse`, undoes them.
  template <class T>
  void advance(const SectionChanges<T>& changes, ValueCodec values, bool inverse = false) {
    if (!known()) return;
    for (std::size_t i = 0; i < changes.positions.size(); ++i) {
      const std::uint32_t at = changes.positions[i];
      const T old_bits = load_word<T>(bits_.data(), at);
      store_word(bits_.data(), at, changed_bits(old_bits, changes.coded[i], values, ulp_order(dtype_), inverse));
    }
  }

 private:
  std::optional<TensorReader> base_;
  DType dtype_ = DType::kBF16;
  Bytes bits_;
};

/// Takes all blocks of section `id` from the cursor, and writes their changes to `out`. `bits` has the bits of the
/// section before these changes, and may be empty unless there are `context` blocks; `decoded` is scratch memory.
/// Throws Error{kCorrupt | kWrongBase | kUsage} as decode_block() does, with the place of the block.
template <class T>
void collect_section(BlockCursor& cursor, const SectionId& id, const SectionBits& bits, DecodedBlock<T>& decoded,
                     SectionChanges<T>& out) {
  out.clear();
  while (!cursor.done() && section_of(cursor.block()) == id) {
    const BlockRef& block = cursor.block();
    const std::uint32_t base = (block.first_tile % kTilesPerSection) * kTileElems;
    try {
      const OldBits old = bits.known() ? bits.from(base, sizeof(T)) : OldBits{};
      decode_block(block, decoded, bits.known() ? &old : nullptr);
    } catch (const Error& error) {
      throw error.within(cursor.where());
    }
    const bool keep_zero = block.coding.values == ValueCodec::kRaw || !decoded.dense;
    for (std::uint32_t i = 0; i < decoded.count; ++i) {
      if (keep_zero || decoded.coded[i] != 0) {
        out.add(base + (decoded.dense ? i : decoded.positions[i]), decoded.coded[i]);
      }
    }
    cursor.next();
  }
}

/// Encodes the changes of one section of a tensor into blocks, which are appended to `out`. `bits` has the bits of the
/// section before the changes, and may be empty unless `context` positions are to be used.
template <class T>
void encode_changes(const SectionChanges<T>& changes, const SectionBits& bits, const TensorSpec& spec,
                    const SectionId& id, const EncodeOptions& options, SectionBlocks& out) {
  SectionBuilder<T> builder(rules_of(options), options.block_changes);
  builder.begin(spec, out);
  const bool old_bits = builder.needs_old_bits();
  std::size_t begin = 0;
  for (std::uint32_t tile = 0; begin < changes.positions.size(); ++tile) {
    std::size_t end = begin;
    while (end < changes.positions.size() && changes.positions[end] / kTileElems == tile) ++end;
    if (end == begin && !old_bits) continue;
    const auto slot = builder.begin_tile(id.section * kTilesPerSection + tile);
    if (old_bits) {
      const std::uint32_t first = tile * kTileElems;
      const std::uint32_t count = std::min(kTileElems, bits.elements<T>() - first);
      builder.add_old_bits(bits.from(first, sizeof(T)).window, count);
    }
    for (std::size_t i = begin; i < end; ++i) {
      slot.positions[i - begin] = slot.base + changes.positions[i] % kTileElems;
      slot.coded[i - begin] = changes.coded[i];
    }
    builder.end_tile(static_cast<std::uint32_t>(end - begin), nullptr);
    begin = end;
  }
  builder.end();
}

}  // namespace sparsecast
