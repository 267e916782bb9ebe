#pragma once

// The codings that other systems ship, written here from their public descriptions, to compare sizes with. Positions
// are flat within each tensor; the streams of all tensors of a step are concatenated before compression, which favours
// the baseline.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sparsecast/delta.hpp"

namespace sparsecast::bench {

/// One tensor of a step: old and new bits.
struct Change {
  DType dtype;
  ConstTensorBytes before;
  ConstTensorBytes after;
};

struct Baseline {
  std::string name;
  std::function<Bytes(const std::vector<Change>&)> encode;
  /// Brings `tensors`, which hold the old bits, to the new ones. Throws Error{kCorrupt}.
  std::function<void(ConstBytes, const std::vector<DType>&, const std::vector<TensorBytes>& tensors)> decode;
};

/// int32 + raw; u16 gaps + raw; u16 gaps + raw, int32 gaps + raw and u16 gaps + xor, each stream zstd -1; full-length
/// xor + zstd -1.
const std::vector<Baseline>& baselines();

}  // namespace sparsecast::bench
