// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "codec/section.hpp"
#include "sparsecast/delta.hpp"

namespace sparsecast {

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
