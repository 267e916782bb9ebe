// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "codec_bench/data.hpp"
#include "sparsecast/delta.hpp"

namespace sparsecast::bench {

/// Frames of one step, without header and commit records.
struct Frames {
  DeltaHeader header;
  std::vector<Bytes> records;
  std::uint64_t bytes = 0;
};

/// Compares the pair's arrays and encodes the changes of a table of one tensor; computes the incremental digest as well
/// if `digest`.
Frames encode(const TensorTable& table, const Pair& pair, const EncodeOptions& options, bool digest);

/// Decodes the frames and changes `live` in place. A second call applies the same differences again: its cost is the
/// same, and its result is no longer the pair's.
void apply(const Frames& frames, const TensorTable& table, std::span<std::byte> live, int threads, bool digest);

}  // namespace sparsecast::bench
