#pragma once

#include <cstdint>
#include <vector>

#include "codec_bench/baselines.hpp"
#include "sparsecast/publisher.hpp"

namespace sparsecast::bench {

EncodeOptions with(PositionMode positions, ValueCodec values, int zstd = 0);

/// Bytes of a whole delta file for one step.
std::uint64_t file_bytes(const TensorTable& table, const std::vector<ConstTensorBytes>& before,
                         const std::vector<ConstTensorBytes>& after, const EncodeOptions& options);

/// Each baseline's bytes, in their order; every one is decoded again and compared (Error{kCorrupt} if it differs).
std::vector<std::uint64_t> baseline_bytes(const TensorTable& table, const std::vector<ConstTensorBytes>& before,
                                          const std::vector<ConstTensorBytes>& after);

}  // namespace sparsecast::bench
