#pragma once

#include <span>
#include <vector>

#include "codec_bench/data.hpp"
#include "sparsecast/delta.hpp"

namespace sparsecast::bench {

/// The frames of one step, without header and commit records.
struct Frames {
  DeltaHeader header;
  std::vector<Bytes> records;
  std::uint64_t bytes = 0;
};

/// Detection by comparison and encoding of a table of one tensor; with `digest`, the incremental digest as well.
Frames encode(const TensorTable& table, const Pair& pair, const EncodeOptions& options, bool digest);

/// Decodes the frames and changes `live` in place. Doing so again walks away from the pair's bits, at the same cost.
void apply(const Frames& frames, const TensorTable& table, std::span<std::byte> live, int threads, bool digest);

}  // namespace sparsecast::bench
