#pragma once

// The kernels of NaN-masked tensors as host code sees them: each enqueues a step and returns.
//
//   blocks  --find_tensor_blocks-->  each tensor's range of blocks
//   blocks, live tensors  --check_new_values-->  the first element that becomes a NaN, the change of the digest
//   one tensor's blocks, its live elements  --fill_elements, expand_blocks-->  a tensor of full shape

#include "core/masked_copy.hpp"
#include "cuda/encode/encode_launchers.hpp"
#include "cuda/apply/received.hpp"

namespace sparsecast::cuda {

/// Blocks [begin, end) of a delta.
struct BlockRange {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

struct ExpansionControl {
  std::uint64_t nan_input_error = kNoInputError;  ///< The least (block << 24 | position in the block) that becomes a NaN.
  std::uint64_t digest_lo = 0;
  std::uint64_t digest_hi = 0;
};

/// `d_ranges`: of each tensor, zero before.
void launch_find_tensor_blocks(const Received& received, BlockRange* d_ranges, const DeviceStream& device);
/// Of the elements of 2^size bytes. Pass kForward or kInverse.
void launch_check_new_values(unsigned size, const Received& received, Pass pass, ExpansionControl* d_control,
                             const DeviceStream& device);
/// Writes `fill` to each of `elements` elements of 2^size bytes.
void launch_fill_elements(unsigned size, std::uint64_t fill, std::byte* d_out, std::uint64_t elements,
                          const DeviceStream& device);
/// Writes the new values of a tensor, whose blocks are `range`, to their places in a contiguous tensor.
void launch_expand_blocks(unsigned size, const Received& received, Pass pass, const BlockRange& range, std::byte* d_out,
                          const DeviceStream& device);
void launch_masked_copy(unsigned size, const MaskedCopyPlan& plan, const std::byte* d_source, std::byte* d_destination,
                        const DeviceStream& device);

}  // namespace sparsecast::cuda
