// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launchers of the kernels for NaN-masked tensors. Each enqueues one step on `device.stream` and returns without
// waiting.
//
//   blocks  --find_tensor_blocks-->  range of blocks of each tensor
//   blocks, live tensors  --check_new_values-->  the first element that becomes a NaN, the change of the digest
//   blocks and live elements of one tensor  --fill_elements, expand_blocks-->  a tensor of full shape

#include "core/masked_copy.hpp"
#include "cuda/apply/received.hpp"
#include "cuda/common/encode_launchers.hpp"

namespace sparsecast::cuda {

/// Range [begin, end) of block numbers; blocks are numbered over all frames.
struct BlockRange {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

/// Results of the kernel check_new_values.
struct ExpansionControl {
  /// Identifies the first element that becomes a NaN, as (number of the block << 24 | position in the block), where the
  /// lowest such number counts; kNoInputError if there is none.
  std::uint64_t nan_input_error = kNoInputError;
  /// Low word of the change of the digest, summed over all tensors.
  std::uint64_t digest_lo = 0;
  /// High word of the change of the digest.
  std::uint64_t digest_hi = 0;
};

/// Enqueues finding the blocks of each tensor and storing their range in `d_ranges`. `d_ranges` has an entry for each
/// tensor, which must be zero before the launch.
void launch_find_tensor_blocks(const Received& received, BlockRange* d_ranges, const DeviceStream& device);
/// Enqueues checking that no changed element of 2^size bytes becomes a NaN, and summing the change of the digest that
/// these elements cause; stores both results in `d_control`. `pass` is kForward or kInverse.
void launch_check_new_values(unsigned size, const Received& received, Pass pass, ExpansionControl* d_control,
                             const DeviceStream& device);
/// Enqueues writing the bits `fill` to each of the `elements` elements, of 2^size bytes, at `d_out`.
void launch_fill_elements(unsigned size, std::uint64_t fill, std::byte* d_out, std::uint64_t elements,
                          const DeviceStream& device);
/// Enqueues writing the new values of one tensor's changed elements, of 2^size bytes, to their places in the contiguous
/// tensor at `d_out`. `range` is the range of the tensor's blocks.
void launch_expand_blocks(unsigned size, const Received& received, Pass pass, const BlockRange& range, std::byte* d_out,
                          const DeviceStream& device);
/// Enqueues copying the elements of `d_source` that are not NaN to their places in `d_destination`. Elements have
/// 2^size bytes; `plan` has the layouts of both.
void launch_masked_copy(unsigned size, const MaskedCopyPlan& plan, const std::byte* d_source, std::byte* d_destination,
                        const DeviceStream& device);

}  // namespace sparsecast::cuda
