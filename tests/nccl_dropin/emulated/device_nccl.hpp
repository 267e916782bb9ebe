// SPDX-License-Identifier: Apache-2.0
#pragma once

// The machine that the drop-in runs on where there is none: two emulated devices, and a fake NCCL below the drop-in,
// whose ranks are threads and whose broadcasts read and write memory of those devices, or of the host.

#include <vector>

#include "nccl_dropin/slots.hpp"

namespace sparsecast::test {

/// Counters of the fake NCCL, not of the drop-in, for the calling thread.
struct NcclCounts {
  std::uint64_t broadcasts = 0;
  std::uint64_t bytes = 0;     ///< Of these broadcasts.
  std::uint64_t captured = 0;  ///< Broadcasts on a stream that is captured; they move nothing.
};
NcclCounts nccl_counts();

/// Returns the slots that the calling thread has filled, in this order; those that were dropped, too.
std::vector<dropin::Slot*>& slots_of_thread();

}  // namespace sparsecast::test
