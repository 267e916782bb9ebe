// SPDX-License-Identifier: Apache-2.0
#pragma once

// Turns the changes of one section, tile by tile, into blocks (docs/wire-format.md §5.1), and blocks into frames.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "codec/block_coding.hpp"
#include "codec/context_kernels.hpp"
#include "codec/word_kernels.hpp"
#include "sparsecast/delta.hpp"
#include "sparsecast/digest.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast {

/// The encoded blocks of one section, before the frame writer puts them into frames.
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
  /// Makes a builder for any number of sections, one after another. `block_changes` is EncodeOptions::block_changes,
  /// the number of changes after which a block ends.
  SectionBuilder(const BlockRules& rules, std::uint32_t block_changes)
      : rules_(rules), plain_block_changes_(block_changes) {
    const std::uint32_t most =
        std::max(block_changes, rules.positions == PositionMode::kContext ? kContextBlockChanges : 0);
    positions_.resize(most + kTileElems);
    coded_.resize(most + kTileElems + cpu::kCodedSlack);
    bitmap_.resize(kTileElems / 8 + cpu::kBitmapSlack);
  }

  /// Memory into which the caller writes the changes of a tile: to `positions` the position of each changed element in
  /// the tile, plus `base`; to `coded` the coded word of the element; to `bitmap`, optionally, the bitmap of the tile.
  /// `coded` has room for cpu::kCodedSlack more words, and `bitmap` for cpu::kBitmapSlack more bytes.
  struct TileSlot {
    std::uint32_t* positions;
    T* coded;
    std::uint32_t base;
    std::byte* bitmap;
  };

  void begin(const TensorSpec& spec, SectionBlocks& out) {
    elements_ = spec.elements();
    dtype_ = spec.dtype;
    context_ = rules_.positions == PositionMode::kContext && is_floating(spec.dtype);
    block_changes_ = context_ ? kContextBlockChanges : plain_block_changes_;
    counts_.clear();
    out_ = &out;
    pending_ = 0;
    seen_ = 0;
  }

  /// Begins tile number `tile`, and returns the slot for its changes. Tile numbers must increase from call to call. The
  /// slot has room for the changes of all elements of the tile, and is valid until end_tile().
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
    return {positions_.data() + pending_, coded_.data() + pending_, (tile - first_tile_) * kTileElems, bitmap_.data()};
  }

  /// Returns true when end_tile(), with this `count`, may read its argument `current`, the new bits of the whole tile.
  /// When false, the caller may pass null for `current`.
  bool needs_current(std::uint32_t count) const {
    if (rules_.values != ValueCodec::kRaw || count == 0) return false;
    return count >= block_changes_ || (std::uint64_t{tile_} + 1) * kTileElems >= elements_;
  }

  /// Returns true when add_old_bits() must be called for all parts of every tile.
  bool needs_old_bits() const { return context_; }

  /// Takes the old bits of the next `count` elements of the current tile. Their size must be a multiple of 4 bytes,
  /// except at the end of the tensor.
  void add_old_bits(const std::byte* old, std::uint32_t count) {
    const std::size_t begin = old_keys_.size();
    old_keys_.resize(begin + count);
    cpu::read_keys(old, count, dtype_, old_keys_.data() + begin);
    old_sums_.back() += cpu::sum_words(old, count * sizeof(T));
  }

  /// Ends the current tile. Its slot holds `count` changes; 0 is possible. `current` are the new bits of the whole
  /// tile; null when they are not known. `has_bitmap`: whether the caller has written the bitmap of the slot.
  void end_tile(std::uint32_t count, const std::byte* current, bool has_bitmap = false) {
    if (count == 0) return;
    const bool alone = count >= block_changes_;
    if (alone && pending_ != 0) start_block_here(count);
    last_tile_ = tile_;
    if (context_) counts_.push_back({tile_, count});
    pending_ += count;
    seen_ += count;
    // The tensor's last tile may be so short that its block has to go dense, for which a raw block needs all its bits.
    const bool last_alone = first_tile_ == last_tile_ && (std::uint64_t{last_tile_} + 1) * kTileElems >= elements_;
    if (alone || last_alone) flush(current, has_bitmap);
  }

  void end() {
    if (pending_ != 0) flush(nullptr);
    out_->changed += seen_;
  }

 private:
  /// Ends the block of the previous tiles, so that the current tile, with its `count` changes, begins a new block.
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

  /// Encodes the pending tiles. `current` are their new bits, or null when they are not known. `has_bitmap`: whether
  /// bitmap_ has the bitmap of the block, which then is a single tile.
  void flush(const std::byte* current, bool has_bitmap = false) {
    if (context_) {
      flush_context();
    } else {
      append_block({first_tile_, last_tile_ - first_tile_ + 1}, positions_.data(), coded_.data(), pending_, current,
                   has_bitmap ? bitmap_.data() : nullptr, *out_);
    }
    pending_ = 0;
  }

  struct TileRun {
    std::uint32_t first = 0;
    std::uint32_t tiles = 0;
  };

  std::uint32_t span_of(const TileRun& run) const { return block_span(elements_, run.first, run.tiles); }

  /// Encodes a block of `count` changes in the tiles of `run`, and appends it to `out`. Never uses `context` positions.
  void append_block(const TileRun& run, const std::uint32_t* positions, const T* coded, std::uint32_t count,
                    const std::byte* current, const std::byte* bitmap, SectionBlocks& out) {
    const std::size_t begin = out.payload.size();
    const BlockChanges<T> changes{positions, coded, count, span_of(run), current, bitmap};
    BlockRules rules = rules_;
    if (rules.positions == PositionMode::kContext) rules.positions = PositionMode::kAuto;
    append_entry(run, count, encode_block(changes, rules, scratch_, out.payload), begin, out);
  }

  /// Appends the entry of a block to `out`. The payload of the block is the part of out.payload from `begin` on.
  void append_entry(const TileRun& run, std::uint32_t count, const Coding& coding, std::size_t begin,
                    SectionBlocks& out) {
    EncodedBlock block;
    block.first_tile = run.first;
    block.tiles = run.tiles;
    block.changed = count;
    block.coding = coding.pack();
    block.payload_begin = begin;
    block.payload_bytes = static_cast<std::uint32_t>(out.payload.size() - begin);
    out.blocks.push_back(block);
  }

  /// Appends the pending tiles as one `context` block, or as the blocks that mode kAuto makes of them, if these are not
  /// larger (docs/wire-format.md §5.4).
  void flush_context() {
    const TileRun run{first_tile_, last_tile_ - first_tile_ + 1};
    BlockChanges<T> changes{positions_.data(), coded_.data(), pending_, span_of(run)};
    changes.old_keys = old_keys_.data();
    for (std::uint32_t tile = 0; tile < run.tiles; ++tile) changes.old_sum += old_sums_[tile];
    Bytes& payload = out_->payload;
    const std::size_t begin = payload.size();
    const Coding coding = encode_context(changes, scratch_.context, payload);
    const std::size_t bytes = payload.size() - begin + kBlockEntryBytes;
    // Most `context` blocks are smaller than any coding of the kAuto blocks, so that these need not be coded.
    if (bytes < least_divided_bytes() || bytes < divided_bytes()) {
      append_entry(run, pending_, coding, begin, *out_);
    } else {
      payload.resize(begin);
      payload.insert(payload.end(), divided_.payload.begin(), divided_.payload.end());
      for (EncodedBlock& block : divided_.blocks) {
        block.payload_begin += begin;
        out_->blocks.push_back(block);
      }
    }
    counts_.clear();
  }

  /// Calls take(run, first, count) for each block that mode kAuto makes of the pending tiles. `run` are the tiles of
  /// the block, `first` is the index of its first pending change, and `count` the number of its changes.
  template <class Take>
  void divide(const Take& take) const {
    std::uint64_t before = seen_ - pending_;
    std::uint32_t at = 0;
    for (std::size_t i = 0; i < counts_.size();) {
      const TileCount& first = counts_[i];
      std::uint64_t reached = before;
      std::uint32_t last = 0;
      do {
        last = counts_[i].tile;
        reached += counts_[i++].changes;
      } while (i < counts_.size() && first.changes < plain_block_changes_ &&
               counts_[i].changes < plain_block_changes_ &&
               reached / plain_block_changes_ == before / plain_block_changes_);
      const auto count = static_cast<std::uint32_t>(reached - before);
      take(TileRun{first.tile, last - first.tile + 1}, at, count);
      before = reached;
      at += count;
    }
  }

  /// Returns a lower bound on the bytes of the blocks that mode kAuto makes of the pending tiles. For each block, the
  /// bound is the least of the bytes with gap codes, with a bitmap, and with all words.
  std::uint64_t least_divided_bytes() const {
    std::uint64_t bytes = 0;
    divide([&](const TileRun& run, std::uint32_t first, std::uint32_t count) {
      std::uint64_t gaps = 0;
      std::uint32_t next = (run.first - first_tile_) * kTileElems;
      for (std::uint32_t i = first; i < first + count; ++i) {
        gaps += least_gap_bits(positions_[i] - next);
        next = positions_[i] + 1;
      }
      const std::uint64_t span = span_of(run);
      bytes += kBlockEntryBytes + std::min((std::min(gaps, span) + count) / 8, span * sizeof(T));
    });
    return bytes;
  }

  /// Encodes into divided_ the blocks that mode kAuto makes of the pending tiles. Returns the number of their bytes,
  /// with directory entries.
  std::uint64_t divided_bytes() {
    divided_.clear();
    divide([&](const TileRun& run, std::uint32_t first, std::uint32_t count) {
      const std::uint32_t base = (run.first - first_tile_) * kTileElems;
      moved_.resize(std::max<std::size_t>(moved_.size(), count));
      for (std::uint32_t n = 0; n < count; ++n) moved_[n] = positions_[first + n] - base;
      append_block(run, moved_.data(), coded_.data() + first, count, nullptr, nullptr, divided_);
    });
    return divided_.payload.size() + divided_.blocks.size() * kBlockEntryBytes;
  }

  struct TileCount {
    std::uint32_t tile = 0;
    std::uint32_t changes = 0;
  };

  BlockRules rules_;
  std::uint32_t plain_block_changes_;  ///< Number of changes after which a block ends, unless it is `context`.
  std::uint32_t block_changes_ = kBlockChanges;
  std::uint64_t elements_ = 0;
  DType dtype_ = DType::kBF16;
  bool context_ = false;  ///< True when the mode and the dtype allow `context` blocks.
  SectionBlocks* out_ = nullptr;
  std::vector<std::uint32_t> positions_;
  std::vector<T> coded_;
  Bytes bitmap_;
  /// Keys of the elements of all tiles from first_tile_ on; used only if context_ is true.
  std::vector<std::uint8_t> old_keys_;
  std::vector<std::uint32_t> old_sums_;  ///< Sum of the old bits of each tile from first_tile_ on, as 32-bit words.
  /// Number of changes of each pending tile with changes; used only if context_ is true.
  std::vector<TileCount> counts_;
  /// Scratch memory for divided_bytes(): positions relative to the first element of a block.
  std::vector<std::uint32_t> moved_;
  SectionBlocks divided_;
  EncodeScratch scratch_;
  std::uint32_t pending_ = 0;
  std::uint64_t seen_ = 0;
  std::uint64_t bucket_ = 0;
  std::uint32_t first_tile_ = 0;
  std::uint32_t last_tile_ = 0;
  std::uint32_t tile_ = 0;
};

/// Packs blocks into frames, and passes each finished frame record to the sink. The caller appends blocks in the order
/// of tensors and tiles. Only the blocks and the frame capacity decide where a frame ends (docs/wire-format.md §5.5).
class FrameWriter {
 public:
  FrameWriter(const DeltaHeader& header, int zstd_level, RecordSink sink);

  /// Appends the blocks of a section of tensor number `tensor`.
  void append(std::uint32_t tensor, const SectionBlocks& section);
  /// Passes the last frame to the sink, and returns the commit record with all fields except the digest.
  CommitRecord finish();

 private:
  void append_block(std::uint32_t tensor, const EncodedBlock& block, ConstBytes payload);
  void flush();

  DeltaHeader header_;
  int zstd_level_;
  RecordSink sink_;
  /// Groups of the unfinished frame: for each tensor its number and the number of its blocks.
  std::vector<std::uint32_t> groups_;
  std::vector<std::uint32_t> entries_;  ///< Directory entries of the unfinished frame, four words for each block.
  Bytes payload_;
  std::uint64_t changed_ = 0;
  Bytes checksums_;
  CommitRecord commit_;
};

}  // namespace sparsecast
