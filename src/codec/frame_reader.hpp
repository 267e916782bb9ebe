// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "codec/block.hpp"
#include "sparsecast/delta.hpp"

namespace sparsecast {

struct OldBits;

/// One block of a frame. Its directory entry has been validated against the tensor table; its payload has not, but
/// decode_block() validates it.
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

/// Returns the fixed fields of a frame, after checking them by the rules of docs/wire-format.md §2.3. `fixed` are the
/// first kFramePrefix bytes of the record, which has `record_bytes` bytes and may lie elsewhere; words() returns the
/// sum over the words after `fixed`, for the checksum. The caller checks the padding. Throws Error{kCorrupt |
/// kUnsupported}.
FrameHeader check_frame_fields(ConstBytes fixed, std::size_t record_bytes, const std::function<StateDigest()>& words);

/// Requires that the frame belongs to `delta` and keeps to its capacity; throws Error{kForeignStream | kCorrupt}.
void require_frame_of(const DeltaHeader& delta, const FrameHeader& frame, std::size_t record_bytes);

/// A frame record, taken apart into its blocks, whose checksum, bounds, order and reserved fields have been checked.
/// The blocks point into the record, or into the reader's own buffer when the frame was compressed. The reader may be
/// moved; the record must outlive it.
class FrameReader {
 public:
  /// Checks and reads a frame of the delta with this header and table. Throws Error{kCorrupt | kForeignStream}.
  FrameReader(ConstBytes record, const DeltaHeader& header, const TensorTable& table);

  /// Replaces each `context` block by a `packed` block of the same changes, so that the positions of blocks() no longer
  /// depend on the weights. old_of(block) returns the bits of a block's elements before the delta. Throws
  /// Error{kCorrupt | kWrongBase}.
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

/// Returns the place of a block for error messages: "frame 3: tensor 'lm_head.weight': block at element 49152".
std::string describe(const FrameHeader& frame, const BlockRef& block, const TensorTable& table);
/// Returns a description of a delta's base for messages: the base version, and the digest of its weights.
std::string describe_base(const DeltaHeader& delta);

}  // namespace sparsecast
