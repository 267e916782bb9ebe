// SPDX-License-Identifier: Apache-2.0
#pragma once

// Codings that other systems ship, written here from their public descriptions, to compare sizes with. Positions are
// indices into the flattened tensor. The streams of all tensors of a step are concatenated before compression, which
// favours the baselines.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sparsecast/delta.hpp"

namespace sparsecast::bench {

/// Old and new bits of one tensor.
struct Change {
  DType dtype;
  ConstBytes before;
  ConstBytes after;
};

/// A coding: a name, an encoder and its inverse.
struct Baseline {
  std::string name;
  std::function<Bytes(const std::vector<Change>&)> encode;
  /// Brings `tensors`, which hold the old bits, to the new ones. Throws Error{kCorrupt}.
  std::function<void(ConstBytes, const std::vector<DType>&, const std::vector<MutableBytes>& tensors)> decode;
};

/// Returns all baselines: int32 + raw; u16 gaps + raw; u16 gaps + raw, int32 gaps + raw and u16 gaps + xor, with each
/// stream compressed by zstd -1; and the full-length xor compressed by zstd -1.
const std::vector<Baseline>& baselines();
/// Returns these, and u16 gaps + xor with zstd -19, which is far too slow to send a step with.
const std::vector<Baseline>& trace_baselines();

}  // namespace sparsecast::bench
