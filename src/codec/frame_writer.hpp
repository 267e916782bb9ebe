// SPDX-License-Identifier: Apache-2.0
#pragma once

// Turns the changes of one section, tile by tile, into blocks (docs/wire-format.md §5.1), and blocks into frames.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "codec/block_coding.hpp"
#include "codec/context_kernels.hpp"
#include "sparsecast/delta.hpp"
#include "sparsecast/digest.hpp"

namespace sparsecast {

/// The output of one encoding task, which waits for the frame writer.
struct SectionBlocks {
  std::vector<EncodedBlock> blocks;
  Bytes payload;
  std::uint64_t changed = 0;
  StateDigest digest_change;

  void clear() {
    blocks.clear();
    payload.clear();
    changed = 0;
    digest_change = {};
  }
};

template <class T>
class SectionBuilder {
 public:
  /// `tensor_elements` bounds the last tile. The builder may be reused for many sections, one after another.
  SectionBuilder(PositionMode mode, ValueCodec values)
      : mode_(mode),
        values_(values),
        block_changes_(mode == PositionMode::kContext ? kContextBlockChanges : kBlockChanges) {
    positions_.resize(block_changes_ + kTileElems);
    coded_.resize(block_changes_ + kTileElems);
  }

  /// Destination of the changes of a tile: positions (of the element within the tile, plus `base`) and coded words.
  struct TileSlot {
    std::uint32_t* positions;
    T* coded;
    std::uint32_t base;
  };

  void begin(std::uint64_t tensor_elements, SectionBlocks& out) {
    elements_ = tensor_elements;
    out_ = &out;
    pending_ = 0;
    seen_ = 0;
  }

  /// `tile` grows from call to call. The slot has room for all elements of the tile, and is valid until end_tile.
  TileSlot begin_tile(std::uint32_t tile) {
    if (pending_ != 0 && seen_ / block_changes_ != bucket_) flush(nullptr);
    if (pending_ == 0) {
      first_tile_ = tile;
      bucket_ = seen_ / block_changes_;
      old_keys_.clear();
      old_sums_.clear();
    }
    old_sums_.push_back(0);
    tile_ = tile;
    return {positions_.data() + pending_, coded_.data() + pending_, (tile - first_tile_) * kTileElems};
  }

  /// Returns whether end_tile(count, ...) may make use of the tile's new bits.
  bool needs_current(std::uint32_t count) const {
    if (values_ != ValueCodec::kRaw || count == 0) return false;
    return count >= block_changes_ || (std::uint64_t{tile_} + 1) * kTileElems >= elements_;
  }

  /// Returns whether add_old_bits must be called for all parts of every tile.
  bool needs_old_bits(DType dtype) const { return mode_ == PositionMode::kContext && is_floating(dtype); }

  /// The old bits of the next `count` elements of the tile: a multiple of 4 bytes, but for the tensor's last.
  void add_old_bits(const std::byte* old, std::uint32_t count, DType dtype) {
    const std::size_t begin = old_keys_.size();
    old_keys_.resize(begin + count);
    cpu::read_keys(old, count, dtype, old_keys_.data() + begin);
    old_sums_.back() += cpu::sum_words(old, count * sizeof(T));
  }

  /// The slot holds `count` changes, perhaps none. `current`: the new bits of the whole tile, or null when unknown.
  void end_tile(std::uint32_t count, const std::byte* current) {
    if (count == 0) return;
    const bool alone = count >= block_changes_;
    if (alone && pending_ != 0) start_block_here(count);
    last_tile_ = tile_;
    pending_ += count;
    seen_ += count;
    // The tensor's last tile may be so short that its block has to go dense, for which a raw block needs all its bits.
    const bool last_alone = first_tile_ == last_tile_ && (std::uint64_t{last_tile_} + 1) * kTileElems >= elements_;
    if (alone || last_alone) flush(current);
  }

  void end() {
    if (pending_ != 0) flush(nullptr);
    out_->changed += seen_;
  }

 private:
  /// Ends the block of the tiles before, so that the current one begins a block of its own.
  void start_block_here(std::uint32_t count) {
    const std::uint32_t before = pending_;
    const std::uint32_t base = (tile_ - first_tile_) * kTileElems;
    flush(nullptr);
    for (std::uint32_t i = 0; i < count; ++i) positions_[i] = positions_[before + i] - base;
    std::copy_n(coded_.begin() + before, count, coded_.begin());
    if (!old_keys_.empty()) old_keys_.erase(old_keys_.begin(), old_keys_.begin() + base);
    old_sums_.erase(old_sums_.begin(), old_sums_.end() - 1);
    first_tile_ = tile_;
    bucket_ = seen_ / block_changes_;
  }

  void flush(const std::byte* current) {
    EncodedBlock block;
    block.first_tile = first_tile_;
    block.tiles = last_tile_ - first_tile_ + 1;
    block.changed = pending_;
    block.payload_begin = out_->payload.size();
    BlockChanges<T> changes{positions_.data(), coded_.data(), pending_, block_span(elements_, first_tile_, block.tiles),
                            current};
    if (!old_keys_.empty()) {
      changes.old_keys = old_keys_.data();
      for (std::uint32_t tile = 0; tile < block.tiles; ++tile) changes.old_sum += old_sums_[tile];
    }
    block.coding = encode_block(changes, mode_, values_, scratch_, out_->payload).pack();
    block.payload_bytes = static_cast<std::uint32_t>(out_->payload.size() - block.payload_begin);
    out_->blocks.push_back(block);
    pending_ = 0;
  }

  PositionMode mode_;
  ValueCodec values_;
  std::uint32_t block_changes_;
  std::uint64_t elements_ = 0;
  SectionBlocks* out_ = nullptr;
  std::vector<std::uint32_t> positions_;
  std::vector<T> coded_;
  std::vector<std::uint8_t> old_keys_;   ///< Of all elements from first_tile_ on, in mode kContext.
  std::vector<std::uint32_t> old_sums_;  ///< Sums of the old bits of each tile from first_tile_ on.
  EncodeScratch scratch_;
  std::uint32_t pending_ = 0;
  std::uint64_t seen_ = 0;
  std::uint64_t bucket_ = 0;
  std::uint32_t first_tile_ = 0;
  std::uint32_t last_tile_ = 0;
  std::uint32_t tile_ = 0;
};

/// Packs blocks, given in order of tensor and tile, into frames and hands each finished record to the sink.
/// The blocks and the capacity alone decide where a frame ends (docs/wire-format.md §5.5).
class FrameWriter {
 public:
  FrameWriter(const DeltaHeader& header, int zstd_level, RecordSink sink);

  void append(std::uint32_t tensor, const SectionBlocks& section);
  /// Flushes the last frame; fills in everything of the commit record but the digest.
  CommitRecord finish();

 private:
  void append_block(std::uint32_t tensor, const EncodedBlock& block, ConstBytes payload);
  void flush();

  DeltaHeader header_;
  int zstd_level_;
  RecordSink sink_;
  std::vector<std::uint32_t> groups_;   ///< Pairs of tensor and number of blocks.
  std::vector<std::uint32_t> entries_;  ///< Four words a block.
  Bytes payload_;
  std::uint64_t changed_ = 0;
  Bytes checksums_;
  CommitRecord commit_;
};

}  // namespace sparsecast
