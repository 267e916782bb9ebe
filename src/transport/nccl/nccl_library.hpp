// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "sparsecast/nccl_transport.hpp"

namespace sparsecast {

// A table of the NCCL functions in use, filled from a loaded library or by a test's fake. nccl.h only provides types
// and prototypes; nothing links against NCCL.

inline constexpr int kOldestNccl = 22000;  ///< Oldest version of NCCL that is accepted, 2.20.0.
inline constexpr int kShrinkAbort = 1;     ///< Value of NCCL_SHRINK_ABORT, which headers before 2.27 lack.
inline constexpr int kSuspendMemory = 1;   ///< Value of NCCL_SUSPEND_MEM, which headers before 2.29.7 lack.

/// Settings of one collective: NCCL's ncclCollConfig_t with the fields that it has in 2.31.2. Later versions append
/// fields, and accept a shorter struct by its `size`. All fields except the tag must be the same on every rank.
struct NcclCollConfig {
  std::size_t size = sizeof(NcclCollConfig);
  unsigned magic = 0xcafebeef;  ///< Value of NCCL_API_MAGIC.
  unsigned version = 23102;
  void* extensions = nullptr;
  int min_ctas = NCCL_CONFIG_UNDEF_INT;
  int max_ctas = NCCL_CONFIG_UNDEF_INT;  ///< Maximum number of CTAs, at most the communicator's maximum.
  int nvls_ctas = NCCL_CONFIG_UNDEF_INT;
  int cga_cluster_size = NCCL_CONFIG_UNDEF_INT;
  const char* algorithms = nullptr;
  int force_algorithms = 1;
  int cta_policy = NCCL_CONFIG_UNDEF_INT;
  std::uint64_t user_profiler_tag = 0;  ///< Tag for profiler plug-ins; NCCL keeps the upper half for itself.
};
static_assert(sizeof(NcclCollConfig) == 64);

struct NcclFunctions {
  int version = 0;

  // Required functions; 2.20 has all of them.
  decltype(&::ncclGetVersion) get_version = nullptr;
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&::ncclCommSplit) comm_split = nullptr;
  decltype(&::ncclCommDestroy) comm_destroy = nullptr;
  decltype(&::ncclCommFinalize) comm_finalize = nullptr;
  decltype(&::ncclCommAbort) comm_abort = nullptr;
  decltype(&::ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&::ncclGetErrorString) get_error_string = nullptr;
  decltype(&::ncclGetLastError) get_last_error = nullptr;
  decltype(&::ncclBroadcast) broadcast = nullptr;
  decltype(&::ncclGroupStart) group_start = nullptr;
  decltype(&::ncclGroupEnd) group_end = nullptr;

  // Optional functions. Their types are spelled out, because the headers of this build may be older than the library.
  ncclResult_t (*mem_alloc)(void** pointer, size_t bytes) = nullptr;                                // 2.19.4
  ncclResult_t (*mem_free)(void* pointer) = nullptr;                                                // 2.19.4
  ncclResult_t (*comm_register)(ncclComm_t, void* pointer, size_t bytes, void** handle) = nullptr;  // 2.19.4
  ncclResult_t (*comm_deregister)(ncclComm_t, void* handle) = nullptr;                              // 2.19.4
  ncclResult_t (*comm_init_rank_scalable)(ncclComm_t*, int ranks, int rank, int ids, ncclUniqueId*,
                                          ncclConfig_t*) = nullptr;  // 2.23.4
  ncclResult_t (*comm_shrink)(ncclComm_t, int* exclude, int excluded, ncclComm_t*, ncclConfig_t*,
                              int flags) = nullptr;              // 2.27.3
  ncclResult_t (*comm_revoke)(ncclComm_t, int flags) = nullptr;  // 2.28.7
  ncclResult_t (*comm_grow)(ncclComm_t, int ranks, const ncclUniqueId*, int rank, ncclComm_t*,
                            ncclConfig_t*) = nullptr;                       // 2.29.2
  ncclResult_t (*comm_get_unique_id)(ncclComm_t, ncclUniqueId*) = nullptr;  // 2.29.2
  ncclResult_t (*comm_suspend)(ncclComm_t, int flags) = nullptr;            // 2.29.7
  ncclResult_t (*comm_resume)(ncclComm_t) = nullptr;                        // 2.29.7
  ncclResult_t (*broadcast_config)(const void* from, void* to, size_t count, ncclDataType_t, int root, ncclComm_t,
                                   cudaStream_t, const NcclCollConfig*) = nullptr;  // 2.31.2

  bool has_registration() const { return mem_alloc && mem_free && comm_register && comm_deregister; }
  bool has_grow() const { return comm_grow && comm_get_unique_id; }
  bool has_suspend() const { return comm_suspend && comm_resume; }
};

/// Returns the configuration of a non-blocking communicator, whose calls can be stopped at any point. `max_ctas` is the
/// communicator's maximum number of CTAs; 0: NCCL chooses.
inline ncclConfig_t nonblocking_config(int max_ctas) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (max_ctas != 0) config.maxCTAs = max_ctas;
  return config;
}

inline constexpr const char* kNcclLibraryVariable = "SPARSECAST_NCCL_LIBRARY";

struct NcclLibrary {
  NcclFunctions functions;
  NcclLibraryInfo info;
};

/// Loads an NCCL library, and returns its functions and description. `requested` is the file to load; if it is empty,
/// takes an NCCL that is already loaded, or else searches for one. Never unloads the library, because NCCL has its own
/// threads. Throws Error{kUnsupported} if there is no library, or it is too old or lacks a required function.
NcclLibrary load_nccl(const std::string& requested);

/// Returns the options with the settings of the environment: SPARSECAST_NCCL_BROADCAST_CTAS if `broadcast_ctas` is 0,
/// and SPARSECAST_NCCL_SUSPEND, which can only switch suspending on. Throws Error{kUsage} that names a variable with a
/// bad value.
NcclOptions with_environment(NcclOptions options);

/// Returns the NCCL library of the process. The first call loads it: the file that SPARSECAST_NCCL_LIBRARY names, or
/// one that is found (load_nccl). Throws as load_nccl() does; a later call then tries again.
const NcclLibrary& process_nccl();

}  // namespace sparsecast
