// SPDX-License-Identifier: Apache-2.0

// A libnccl.so.2 for tests of the drop-in: ranks are processes that share the directory FAKE_NCCL_DIRECTORY, buffers
// are in memory of the host, and a broadcast is done when the call returns.

#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "tests/nccl_dropin/fake_ranks.hpp"
// In a joint build this file is part of another one, which no target of its own can name.
#include "tests/support/fake_process_worlds.cpp"  // NOLINT(bugprone-suspicious-include)

using sparsecast::test::Message;
using sparsecast::test::wait_until;
using sparsecast::test::World;
using sparsecast::test::Worlds;

struct ncclComm {
  std::shared_ptr<World> world;
  int rank = 0;
  std::uint64_t broadcasts = 0;
};

namespace {

Worlds& worlds() {
  static const std::unique_ptr<Worlds> made = sparsecast::test::make_process_worlds(std::getenv("FAKE_NCCL_DIRECTORY"));
  return *made;
}

constexpr std::size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = 22809;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = sparsecast::test::id_of(worlds().new_id());
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  auto made = std::make_unique<ncclComm>();
  made->world = worlds().of(sparsecast::test::world_of(id), size);
  made->rank = rank;
  made->world->join(rank);
  if (!wait_until([&] { return made->world->all_joined(); })) return ncclRemoteError;
  *comm = made.release();
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
  return ncclCommInitRank(comm, size, id, rank);
}
ncclResult_t ncclCommSplit(ncclComm_t, int, int, ncclComm_t*, ncclConfig_t*) { return ncclInvalidUsage; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t comm) { return ncclCommDestroy(comm); }
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) {
  *state = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  *count = comm->world->size();
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t) { return "an error of the fake"; }
const char* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclGroupStart() { return ncclSuccess; }
ncclResult_t ncclGroupEnd() { return ncclSuccess; }
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t) {
  const std::size_t bytes = count * kSizes[type];
  const std::uint64_t number = comm->broadcasts++;
  const auto* const data = static_cast<const std::byte*>(from);
  const bool is_root = comm->rank == root;
  comm->world->arrive(number, {comm->rank, root, number, {data, is_root ? bytes : 0}});
  std::optional<Message> message;
  if (!wait_until([&] { return (message = comm->world->message(number)).has_value(); })) return ncclRemoteError;
  if (message->data.size() != bytes) return ncclInternalError;
  const char* const flip = std::getenv("FAKE_NCCL_FLIP");  // So many bytes or fewer: one bit flips on the way.
  if (flip != nullptr && !is_root && bytes <= std::strtoull(flip, nullptr, 10))
    message->data[bytes / 2] ^= std::byte{1};
  if (to != nullptr) std::memmove(to, message->data.data(), bytes);
  return ncclSuccess;
}
ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

}  // extern "C"
