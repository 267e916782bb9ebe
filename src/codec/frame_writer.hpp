// SPDX-License-Identifier: Apache-2.0
#pragma once

// Turns the changes of one section, tile by tile, into blocks (docs/wire-format.md §5.1), and blocks into frames.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "codec/block_coding.hpp"
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
  SectionBuilder(PositionMode mode, ValueCodec values) : mode_(mode), values_(values) {
    positions_.resize(kBuffer);
    coded_.resize(kBuffer);
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
    if (pending_ != 0 && seen_ / kBlockChanges != bucket_) flush(nullptr);
    if (pending_ == 0) {
      first_tile_ = tile;
      bucket_ = seen_ / kBlockChanges;
    }
    tile_ = tile;
    return {positions_.data() + pending_, coded_.data() + pending_, (tile - first_tile_) * kTileElems};
  }

  /// Returns whether end_tile(count, ...) may make use of the tile's new bits.
  bool needs_current(std::uint32_t count) const {
    if (values_ != ValueCodec::kRaw || count == 0) return false;
    return count >= kBlockChanges || (std::uint64_t{tile_} + 1) * kTileElems >= elements_;
  }

  /// The slot holds `count` changes, perhaps none. `current`: the new bits of the whole tile, or null when unknown.
  void end_tile(std::uint32_t count, const std::byte* current) {
    if (count == 0) return;
    const bool alone = count >= kBlockChanges;
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
  static constexpr std::size_t kBuffer = kBlockChanges + kTileElems;

  /// Ends the block of the tiles before, so that the current one begins a block of its own.
  void start_block_here(std::uint32_t count) {
    const std::uint32_t before = pending_;
    const std::uint32_t base = (tile_ - first_tile_) * kTileElems;
    flush(nullptr);
    for (std::uint32_t i = 0; i < count; ++i) positions_[i] = positions_[before + i] - base;
    std::copy_n(coded_.begin() + before, count, coded_.begin());
    first_tile_ = tile_;
    bucket_ = seen_ / kBlockChanges;
  }

  void flush(const std::byte* current) {
    EncodedBlock block;
    block.first_tile = first_tile_;
    block.tiles = last_tile_ - first_tile_ + 1;
    block.changed = pending_;
    block.payload_begin = out_->payload.size();
    const BlockChanges<T> changes{positions_.data(), coded_.data(), pending_,
                                  block_span(elements_, first_tile_, block.tiles), current};
    block.coding = encode_block(changes, mode_, values_, scratch_, out_->payload).pack();
    block.payload_bytes = static_cast<std::uint32_t>(out_->payload.size() - block.payload_begin);
    out_->blocks.push_back(block);
    pending_ = 0;
  }

  PositionMode mode_;
  ValueCodec values_;
  std::uint64_t elements_ = 0;
  SectionBlocks* out_ = nullptr;
  std::vector<std::uint32_t> positions_;
  std::vector<T> coded_;
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
