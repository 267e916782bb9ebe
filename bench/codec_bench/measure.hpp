// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "codec_bench/baselines.hpp"
#include "sparsecast/publisher.hpp"

namespace sparsecast::bench {

/// Returns default options with these codecs.
EncodeOptions with(PositionMode positions, ValueCodec values, int zstd = 0);
/// The same with blocks of kLargeBlockChanges.
EncodeOptions with_large_blocks(PositionMode positions, ValueCodec values);

/// Returns the size of a whole delta file for one step.
std::uint64_t file_bytes(const TensorTable& table, const std::vector<ConstBytes>& before,
                         const std::vector<ConstBytes>& after, const EncodeOptions& options);

/// Returns each baseline's size, in the order of `of`. Decodes every one again and throws Error{kCorrupt} if the result
/// differs from `after`.
std::vector<std::uint64_t> baseline_bytes(const TensorTable& table, const std::vector<ConstBytes>& before,
                                          const std::vector<ConstBytes>& after,
                                          const std::vector<Baseline>& of = baselines());

}  // namespace sparsecast::bench
