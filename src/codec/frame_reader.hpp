// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "codec/block.hpp"
#include "sparsecast/delta.hpp"

namespace sparsecast {

struct OldBits;

/// One block of a frame. Its directory entry has been validated against the tensor table. Its payload has not been
/// validated: decode_block() does that.
struct BlockRef {
  std::uint32_t tensor = 0;
  std::uint64_t first_element = 0;
  std::uint32_t first_tile = 0;
  std::uint32_t tiles = 0;
  std::uint32_t span = 0;  ///< Number of elements from the block's first to its last.
  std::uint32_t changed = 0;
  Coding coding;
  ConstBytes payload;
};

/// Returns the fixed fields of a frame record, after checking them (docs/wire-format.md §2.3). `fixed` are the first
/// kFramePrefix bytes of the record. The record has `record_bytes` bytes, and may be in other memory, such as a
/// device's. words() returns the sum of the record's words after `fixed` (sum_of_frame_words), for the checksum. The
/// caller must check the padding. Throws Error{kCorrupt} for invalid fields or a wrong checksum, and kUnsupported for a
/// feature that this build does not know.
FrameHeader check_frame_fields(ConstBytes fixed, std::size_t record_bytes, const std::function<StateDigest()>& words);

/// Throws Error{kForeignStream} unless the frame belongs to `delta`, and kCorrupt when the frame is larger than the
/// delta's frame_capacity allows.
void require_frame_of(const DeltaHeader& delta, const FrameHeader& frame, std::size_t record_bytes);

/// The blocks of a frame record. The record's checksum, bounds, order of blocks and reserved fields have been checked.
/// The blocks point into the record, or into the reader's own buffer when the frame was compressed. The reader may be
/// moved; the record must outlive it.
class FrameReader {
 public:
  /// Checks and reads a frame record of the delta with this header and table. Throws Error{kCorrupt} for an invalid
  /// record, kUnsupported for a feature that this build does not know, and kForeignStream for a record of another
  /// delta.
  FrameReader(ConstBytes record, const DeltaHeader& header, const TensorTable& table);

  /// Replaces each `context` block by a `packed` block of the same changes, so that decoding blocks() no longer needs
  /// the old weights. old_of(block) returns the bits of a block's elements before the delta. Throws Error{kCorrupt} for
  /// an invalid block, and kWrongBase when a block was encoded against other bits.
  void resolve_context(const TensorTable& table, const std::function<OldBits(const BlockRef&)>& old_of);

  const FrameHeader& header() const noexcept { return header_; }
  const std::vector<BlockRef>& blocks() const noexcept { return blocks_; }

 private:
  void read_directory(ConstBytes body, const DeltaHeader& delta, const TensorTable& table);

  FrameHeader header_;
  Bytes decompressed_;
  Bytes resolved_;  ///< Payloads of the blocks that resolve_context() has replaced.
  std::vector<BlockRef> blocks_;
};

/// Returns true when block `next` comes after block `previous` in the order of the format: by tensor, then by tile,
/// without overlap.
inline bool follows(const BlockRef& previous, const BlockRef& next) {
  return next.tensor > previous.tensor ||
         (next.tensor == previous.tensor && run_follows(next.first_tile, previous.first_tile, previous.tiles));
}

/// Returns a description of where a block is, for error messages: "frame 3: tensor 'lm_head.weight': block at element
/// 49152".
std::string describe(const FrameHeader& frame, const BlockRef& block, const TensorTable& table);
/// Returns a description of a delta's base for messages: the base version, and the digest of its weights.
std::string describe_base(const DeltaHeader& delta);

}  // namespace sparsecast
