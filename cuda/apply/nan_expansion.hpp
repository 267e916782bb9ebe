// SPDX-License-Identifier: Apache-2.0
#pragma once

// Expands a staged delta into NaN-masked tensors on the device, as NanMaskedDelta does on the CPU.

#include <vector>

#include "codec/apply.hpp"
#include "cuda/apply/nan_masked_launchers.hpp"
#include "cuda/common/device_memory.hpp"
#include "cuda/common/device_stream.hpp"
#include "sparsecast/digest.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast::cuda {

class NanExpansion {
 public:
  /// Loads the kernels of this class, and the kernels of device_masked_copy, which loaders use to copy the expanded
  /// tensors. sizes[s] says whether the table has elements of 2^s bytes. `loader` must have loads_only set.
  static void load_kernels(const bool (&sizes)[4], const DeviceStream& loader);

  /// Checks that NaN-masked tensors can carry the delta whose validated blocks `received` describes. Writes no tensor,
  /// and waits. Returns the change that the digest will show once every tensor has been copied. sizes[s] says whether
  /// the table has elements of 2^s bytes. Throws Error{kUnsupported} naming a tensor whose dtype has no NaNs, or the
  /// element that would become a NaN, and {kCorrupt} if the frames have changed since they were validated.
  StateDigest prepare(const TensorTable& table, const Received& received, const bool (&sizes)[4], Direction direction,
                      const HostWait& host, const DeviceStream& device);
  /// Makes expand() throw until the next prepare(). Must be called when the live tensors or the frames have changed.
  void forget() noexcept { prepared_ = false; }

  /// Returns the indices of the tensors that the delta changes, ascending; valid after prepare().
  const std::vector<std::size_t>& tensors() const noexcept { return tensors_; }
  /// Enqueues filling the contiguous tensor at `d_out` with NaNs and the new values. Throws Error{kUsage} for a tensor
  /// number out of range, or if the delta is not prepared (prepare() was not called, or forget() was called since), and
  /// {kUnsupported} for a dtype without NaNs.
  void expand(const TensorTable& table, const Received& received, std::size_t tensor, void* d_out,
              const DeviceStream& device) const;

 private:
  void read_decision(const TensorTable& table, const Received& received, const HostWait& host,
                     const DeviceStream& device);
  [[noreturn]] void explain(const TensorTable& table, const Received& received, std::uint64_t input_error,
                            const HostWait& host, const DeviceStream& device);

  DeviceMemory ranges_, control_;
  PinnedMemory h_ranges_, h_control_, h_received_;
  std::vector<BlockRange> block_ranges_;
  std::vector<std::size_t> tensors_;
  Pass pass_ = Pass::kForward;
  bool prepared_ = false;
};

}  // namespace sparsecast::cuda
