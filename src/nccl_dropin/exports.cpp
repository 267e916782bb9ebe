// SPDX-License-Identifier: Apache-2.0

// The functions of NCCL in which the drop-in does something; forward.cpp has the others.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "nccl_dropin/real_library.hpp"
#include "nccl_dropin/sparse_communicator.hpp"
#include "sparsecast/device.hpp"
#ifdef SPARSECAST_HAVE_CUDART
#include <cuda_runtime_api.h>
#endif

namespace sparsecast::dropin {
namespace {

/// A communicator that was made by ncclCommInitRank or ncclCommInitRankConfig.
struct Known {
  std::once_flag met;
  ncclUniqueId id{};
  int rank = 0;
  int size = 0;
  int device = kHostMemory;  ///< The current one when the communicator was made.
  /// Made in a group, as ranks are that share a thread: a rank that waits would keep the others from coming.
  bool made_in_group = false;
  std::unique_ptr<SparseCommunicator> sparse;  ///< Null: broadcasts are left to NCCL.
  ncclResult_t refusal = ncclSuccess;          ///< Result of every large broadcast if it is not ncclSuccess.
};

/// A large broadcast that waits for the end of its group.
struct Grouped {
  std::shared_ptr<Known> known;
  const void* from = nullptr;
  void* to = nullptr;
  Shape shape;
  cudaStream_t stream = nullptr;
};

/// The group that this thread has open.
struct Group {
  int depth = 0;  ///< Of ncclGroupStart.
  std::vector<Grouped> broadcasts;
};
thread_local Group group;

class Registry {
 public:
  static Registry& of_process() {
    static Registry* const registry = new Registry;  // Never ends: exits of threads may come late.
    return *registry;
  }
  void add(ncclComm_t comm, std::shared_ptr<Known> known) {
    const std::lock_guard lock(mutex_);
    known_[comm] = std::move(known);
  }
  std::shared_ptr<Known> find(ncclComm_t comm) {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(comm);
    return found == known_.end() ? nullptr : found->second;
  }
  std::shared_ptr<Known> take(ncclComm_t comm) {
    const std::lock_guard lock(mutex_);
    auto node = known_.extract(comm);
    return node.empty() ? nullptr : std::move(node.mapped());
  }

 private:
  std::mutex mutex_;
  std::map<ncclComm_t, std::shared_ptr<Known>> known_;
};

/// Returns the real library; prints why there is none, and returns null.
const RealLibrary* real() noexcept {
  try {
    static const RealLibrary& library = real_library();
    return &library;
  } catch (const std::exception& error) {
    fmt::print(stderr, "sparsecast: the real NCCL cannot be used: {}\n", error.what());
    return nullptr;
  }
}

bool has_device() {
  static const bool has = !survey_devices().devices.empty();
  return has;
}

/// Returns the API of the memory in which buffers are.
DeviceApi& memory_api() { return has_device() ? cuda_device_api() : host_api(); }

/// Lets the ranks of a communicator meet, once.
void meet_once(Known& known, ncclComm_t comm) {
  std::call_once(known.met, [&] {
    if (known.size < 2 || known.made_in_group) return;
    try {
      Meeting meeting = meet(known.id, known.rank, known.size, settings());
      if (meeting.control != nullptr) {
        known.sparse = std::make_unique<SparseCommunicator>(real()->functions, comm, std::move(meeting), memory_api(),
                                                            known.device, settings().timeout);
        return;
      }
      if (settings().strict) known.refusal = ncclInvalidUsage;
      fmt::print(stderr, "sparsecast: rank {} of {}: broadcasts are {}: {}\n", known.rank, known.size,
                 settings().strict ? "refused" : "left to NCCL", meeting.why_dense);
    } catch (const std::exception& error) {
      known.refusal = ncclRemoteError;
      fmt::print(stderr, "sparsecast: rank {} of {}: the ranks do not agree whether broadcasts are sparse: {}\n",
                 known.rank, known.size, error.what());
    }
  });
}

/// Remembers a new communicator, and lets its ranks meet; those of one that is still in progress meet in its first
/// large broadcast.
ncclResult_t remember(ncclResult_t made, ncclComm_t* comm, int size, const ncclUniqueId& id, int rank) {
  if ((made != ncclSuccess && made != ncclInProgress) || *comm == nullptr) return made;
  try {
    statistics();
    auto known = std::make_shared<Known>();
    known->id = id;
    known->rank = rank;
    known->size = size;
    known->device = memory_api().current_device();
    known->made_in_group = group.depth != 0;
    if (made == ncclSuccess) meet_once(*known, *comm);
    Registry::of_process().add(*comm, std::move(known));
  } catch (const std::exception& error) {
    fmt::print(stderr, "sparsecast: {}\n", error.what());
  }
  return made;
}

bool is_captured(cudaStream_t stream) {
#ifdef SPARSECAST_HAVE_CUDART
  if (!has_device()) return false;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) != cudaSuccess || status != cudaStreamCaptureStatusNone;
#else
  (void)stream;
  return false;
#endif
}

std::uint64_t least_bytes() noexcept {
  try {
    static const std::uint64_t bytes = settings().min_bytes;
    return bytes;
  } catch (const std::exception& error) {
    fmt::print(stderr, "sparsecast: {}; all broadcasts are left to NCCL\n", error.what());
    return ~std::uint64_t{0};
  }
}

ncclResult_t broadcast_sparsely(const Grouped& call) {
  return call.known->sparse->broadcast(call.from, call.to, call.shape, call.stream);
}

/// Broadcasts through the communicator's slots if it has some, in a group at the group's end; otherwise calls
/// `through`.
template <class Through>
ncclResult_t broadcast(const void* from, void* to, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream, const Through& through) {
  const std::uint64_t bytes = std::uint64_t{count} * size_of(type);
  static const std::uint64_t least = least_bytes();
  if (bytes < least || bytes == 0) return through();
  const std::shared_ptr<Known> known = Registry::of_process().find(comm);
  if (known == nullptr || is_captured(stream)) return through();
  meet_once(*known, comm);
  if (known->refusal != ncclSuccess) return known->refusal;
  if (known->sparse == nullptr || root < 0 || root >= known->size) return through();
  const Shape shape{bytes, static_cast<std::uint32_t>(type), static_cast<std::uint32_t>(root)};
  const Grouped call{known, from, to, shape, stream};
  if (group.depth == 0) return broadcast_sparsely(call);
  group.broadcasts.push_back(call);
  return ncclSuccess;
}

/// Runs the broadcasts of a group whose other operations NCCL has started. Operations of a group may be called in any
/// order of their communicators, so these run in an order that is the same on all ranks: that of the unique ids.
ncclResult_t run_grouped(std::vector<Grouped> broadcasts) {
  std::stable_sort(broadcasts.begin(), broadcasts.end(), [](const Grouped& a, const Grouped& b) {
    return std::memcmp(&a.known->id, &b.known->id, sizeof a.known->id) < 0;
  });
  ncclResult_t result = ncclSuccess;
  for (const Grouped& call : broadcasts) {
    const ncclResult_t one = broadcast_sparsely(call);
    if (result == ncclSuccess) result = one;
  }
  return result;
}

void forget(ncclComm_t comm, bool aborts) noexcept {
  const std::shared_ptr<Known> known = Registry::of_process().take(comm);
  if (known != nullptr && known->sparse != nullptr) known->sparse->leave(aborts);
}

}  // namespace
}  // namespace sparsecast::dropin

// NOLINTBEGIN(readability-identifier-naming): NCCL's names.
#define SPARSECAST_EXPORT extern "C" __attribute__((visibility("default")))

using namespace sparsecast::dropin;

SPARSECAST_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const RealLibrary* const library = real();
  if (library == nullptr) return ncclInvalidUsage;
  const ncclResult_t result = library->functions.get_unique_id(id);
  try {
    if (result == ncclSuccess) mark(*id, settings());
  } catch (const std::exception& error) {
    fmt::print(stderr, "sparsecast: {}\n", error.what());
  }
  return result;
}

SPARSECAST_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  const RealLibrary* const library = real();
  if (library == nullptr) return ncclInvalidUsage;
  return remember(library->comm_init_rank(comm, size, id, rank), comm, size, id, rank);
}

SPARSECAST_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                                      ncclConfig_t* config) {
  const RealLibrary* const library = real();
  if (library == nullptr) return ncclInvalidUsage;
  return remember(library->functions.comm_init_rank_config(comm, size, id, rank, config), comm, size, id, rank);
}

SPARSECAST_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const RealLibrary* const library = real();
  if (library == nullptr) return ncclInvalidUsage;
  forget(comm, false);
  return library->functions.comm_destroy(comm);
}

SPARSECAST_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const RealLibrary* const library = real();
  if (library == nullptr) return ncclInvalidUsage;
  forget(comm, true);
  return library->functions.comm_abort(comm);
}

SPARSECAST_EXPORT ncclResult_t ncclGroupStart() {
  const RealLibrary* const library = real();
  if (library == nullptr) return ncclInvalidUsage;
  ++group.depth;
  return library->functions.group_start();
}

SPARSECAST_EXPORT ncclResult_t ncclGroupEnd() {
  const RealLibrary* const library = real();
  if (library == nullptr) return ncclInvalidUsage;
  const ncclResult_t result = library->functions.group_end();
  if (group.depth > 0) --group.depth;
  if (group.depth > 0 || group.broadcasts.empty()) return result;
  std::vector<Grouped> broadcasts = std::exchange(group.broadcasts, {});
  if (result != ncclSuccess && result != ncclInProgress) return result;
  const ncclResult_t ours = run_grouped(std::move(broadcasts));
  return ours == ncclSuccess ? result : ours;
}

SPARSECAST_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const RealLibrary* const library = real();
  if (library == nullptr) return ncclInvalidUsage;
  const ncclResult_t result = library->functions.comm_get_async_error(comm, state);
  if (result != ncclSuccess || *state != ncclSuccess) return result;
  const std::shared_ptr<Known> known = Registry::of_process().find(comm);
  if (known != nullptr && known->sparse != nullptr) *state = known->sparse->failure();
  return ncclSuccess;
}

SPARSECAST_EXPORT ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                                             ncclComm_t comm, cudaStream_t stream) {
  const RealLibrary* const library = real();
  if (library == nullptr) return ncclInvalidUsage;
  return broadcast(from, to, count, type, root, comm, stream,
                   [&] { return library->functions.broadcast(from, to, count, type, root, comm, stream); });
}

SPARSECAST_EXPORT ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                                         cudaStream_t stream) {
  const RealLibrary* const library = real();
  if (library == nullptr) return ncclInvalidUsage;
  return broadcast(buffer, buffer, count, type, root, comm, stream,
                   [&] { return library->bcast(buffer, count, type, root, comm, stream); });
}
// NOLINTEND(readability-identifier-naming)
