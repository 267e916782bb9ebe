// SPDX-License-Identifier: Apache-2.0
#pragma once

// The NCCL that the drop-in passes calls on to.

#include "transport/nccl/nccl_library.hpp"

namespace sparsecast::dropin {

/// Environment variable with the file of the real NCCL, for processes in which it is not found.
inline constexpr const char* kRealVariable = "SPARSECAST_NCCL_REAL";

struct RealLibrary {
  void* handle = nullptr;  ///< Of dlopen; never closed.
  NcclFunctions functions;
  decltype(&::ncclBcast) bcast = nullptr;
  decltype(&::ncclCommInitRank) comm_init_rank = nullptr;
};

/// Returns the real library. The first call loads it: the file that SPARSECAST_NCCL_REAL names, an NCCL that the
/// process has loaded, or one that the loader finds. Throws Error{kUnsupported} when there is none, when it lacks a
/// function that is needed, or when the file is the drop-in itself; a later call then tries again, but functions that
/// are forwarded by name (forward.cpp) stay absent. Any thread may call.
const RealLibrary& real_library();

}  // namespace sparsecast::dropin
