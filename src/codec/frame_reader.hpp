// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "codec/block.hpp"
#include "sparsecast/delta.hpp"

namespace sparsecast {

struct OldBits;

/// One block of a frame whose directory entry has been validated against the tensor table. Its payload has not: decode
/// it with decode_block.
struct BlockRef {
  std::uint32_t tensor = 0;
  std::uint64_t first_element = 0;
  std::uint32_t first_tile = 0;
  std::uint32_t tiles = 0;
  std::uint32_t span = 0;  ///< Elements covered.
  std::uint32_t changed = 0;
  Coding coding;
  ConstBytes payload;
};

/// The rules of docs/wire-format.md §2.3 for the fixed fields of a frame, its first kFramePrefix bytes, wherever the
/// rest of its `record_bytes` lies; `words` gives the sum over the words after them. The padding is left to the caller.
/// Throws Error{kCorrupt | kUnsupported}.
FrameHeader check_frame_fields(ConstBytes fixed, std::size_t record_bytes, const std::function<StateDigest()>& words);

/// Requires that the frame belongs to `delta` and keeps to its capacity; throws Error{kForeignStream | kCorrupt}.
void require_frame_of(const DeltaHeader& delta, const FrameHeader& frame, std::size_t record_bytes);

/// A frame record, checked and taken apart: checksum, bounds, order, reserved fields. Blocks point into the record, or
/// into the reader's own buffer when the frame was compressed; move the reader freely, but keep the record alive.
class FrameReader {
 public:
  /// Throws Error{kCorrupt | kForeignStream}; `header` and `table` are the delta's.
  FrameReader(ConstBytes record, const DeltaHeader& header, const TensorTable& table);

  /// Replaces each `context` block by a `packed` one of the same changes, so that their positions no longer depend on
  /// the weights; `old_of` returns the bits of a block before the delta. Throws Error{kCorrupt | kWrongBase}.
  void resolve_context(const TensorTable& table, const std::function<OldBits(const BlockRef&)>& old_of);

  const FrameHeader& header() const noexcept { return header_; }
  const std::vector<BlockRef>& blocks() const noexcept { return blocks_; }

 private:
  void read_directory(ConstBytes body, const DeltaHeader& delta, const TensorTable& table);

  FrameHeader header_;
  Bytes decompressed_;
  Bytes resolved_;  ///< Payloads of blocks that were `context`.
  std::vector<BlockRef> blocks_;
};

/// Returns whether block `next` comes after block `previous` in the order of the format (tensor, then tile, no
/// overlap).
inline bool follows(const BlockRef& previous, const BlockRef& next) {
  return next.tensor > previous.tensor ||
         (next.tensor == previous.tensor && run_follows(next.first_tile, previous.first_tile, previous.tiles));
}

/// Returns text for errors: "frame 3: tensor 'lm_head.weight': block at element 49152".
std::string describe(const FrameHeader& frame, const BlockRef& block, const TensorTable& table);
/// Returns a description of a delta's base for messages: its version and the digest of the weights.
std::string describe_base(const DeltaHeader& delta);

}  // namespace sparsecast
