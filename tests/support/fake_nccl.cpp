// SPDX-License-Identifier: Apache-2.0
#ifdef SPARSECAST_HAVE_NCCL

#include "tests/support/fake_nccl.hpp"

#include <algorithm>

#include "core/unstopped_work.hpp"
#include "tests/support/fake_nccl_state.hpp"

namespace sparsecast::test {
namespace {

FakeNccl* current = nullptr;

void misuse(const std::string& what) { current->state().misuse(what); }

/// Ends with the fake.
ncclResult_t hang() {
  FakeNccl::State& state = current->state();
  ++state.hanging;
  while (!state.closing) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  --state.hanging;
  return ncclSuccess;
}

/// The group that the calling thread has begun.
struct Group {
  int depth = 0;
  ncclResult_t failure = ncclSuccess;
  std::vector<Broadcast> broadcasts;
};
thread_local Group group;

ncclResult_t end_group() {
  if (group.depth == 0) misuse("ncclGroupEnd without a group");
  if (current->state().call_fails()) group.failure = ncclSystemError;
  if (--group.depth > 0) return group.failure;
  const Group ended = std::exchange(group, {});
  if (!ended.broadcasts.empty()) ++current->counts.groups;
  return ended.failure == ncclSuccess ? current->state().end_group(ended.broadcasts) : ended.failure;
}

ncclResult_t broadcast(void* data, size_t count, ncclDataType_t type, int root, ncclComm_t communicator,
                       cudaStream_t stream) {
  if (type != ncclInt8 && type != ncclUint8) misuse("not bytes");
  if (current->state().call_fails()) {
    if (group.depth > 0) group.failure = ncclSystemError;
    return ncclSystemError;
  }
  std::vector<Broadcast> alone;
  std::vector<Broadcast>& together = group.depth > 0 ? group.broadcasts : alone;
  const ncclResult_t result = current->state().broadcast(communicator, data, count, root, stream, together);
  if (group.depth > 0) {
    if (result != ncclSuccess) group.failure = result;
    return result;
  }
  return result == ncclSuccess ? current->state().end_group(alone) : result;
}

ncclUniqueId new_id() {
  ncclUniqueId id{};
  const std::uint64_t number = current->state().worlds->new_id();
  std::memcpy(id.internal, &number, sizeof(number));
  return id;
}

void fill_optional(NcclFunctions& f) {
  f.mem_alloc = [](void** pointer, size_t bytes) {
    if (current->faults.no_mem_alloc.count(FakeDevice::device_in_use()) != 0) return ncclUnhandledCudaError;
    ++current->counts.mem_allocs;
    *pointer = current->device().allocate(bytes);
    return ncclSuccess;
  };
  f.mem_free = [](void* pointer) {
    ++current->counts.mem_frees;
    current->device().free(pointer);
    return ncclSuccess;
  };
  f.comm_register = [](ncclComm_t communicator, void* pointer, size_t, void** handle) {
    current->state().check_ready(communicator, "ncclCommRegister");
    if (current->faults.no_register.count(FakeDevice::device_in_use()) != 0) return ncclSystemError;
    ++current->counts.registrations;
    *handle = pointer;
    return ncclSuccess;
  };
  f.comm_deregister = [](ncclComm_t communicator, void*) {
    current->state().check_call(communicator, "ncclCommDeregister");
    ++current->counts.deregistrations;
    return ncclSuccess;
  };
  f.comm_init_rank_scalable = [](ncclComm_t* out, int size, int rank, int, ncclUniqueId* ids, ncclConfig_t* config) {
    ++current->counts.scalable_inits;
    return current->state().init(out, size, ids[0], rank, config);
  };
  f.comm_shrink = [](ncclComm_t communicator, int* lost, int count, ncclComm_t* out, ncclConfig_t* config, int flags) {
    current->state().check_ready(communicator, "ncclCommShrink");
    current->state().check_config(*config);
    ++current->counts.shrinks;
    return current->state().shrink(*of(communicator), {lost, static_cast<std::size_t>(count)}, out, flags);
  };
  f.comm_revoke = [](ncclComm_t communicator, int) {
    // It would free the job that is still to be completed.
    current->state().check_ready(communicator, "ncclCommRevoke");
    ++current->counts.revokes;
    current->state().stop(communicator, false);
    return ncclInProgress;
  };
  f.comm_grow = [](ncclComm_t communicator, int size, const ncclUniqueId* id, int rank, ncclComm_t* out,
                   ncclConfig_t* config) {
    if (communicator != nullptr) current->state().check_ready(communicator, "ncclCommGrow");
    ++current->counts.grows;
    return current->state().grow(of(communicator), size, id, rank, out, config);
  };
  f.comm_get_unique_id = [](ncclComm_t communicator, ncclUniqueId* id) {
    current->state().check_ready(communicator, "ncclCommGetUniqueId");
    *id = new_id();
    std::uint64_t number = 0;
    std::memcpy(&number, id->internal, sizeof(number));
    if (!current->faults.growth_is_lost) of(communicator)->world->offer_growth(number);
    return ncclSuccess;
  };
}

/// What only newer libraries have.
void fill_newest(NcclFunctions& f) {
  f.comm_suspend = [](ncclComm_t communicator, int flags) {
    current->state().check_ready(communicator, "ncclCommSuspend");
    if (flags != kSuspendMemory) misuse("nothing to suspend");
    ++current->counts.suspends;
    return current->state().meet(*of(communicator), true);
  };
  f.comm_resume = [](ncclComm_t communicator) {
    current->state().check_call(communicator, "ncclCommResume");
    ++current->counts.resumes;
    return current->state().meet(*of(communicator), false);
  };
  f.broadcast_config = [](const void*, void* data, size_t count, ncclDataType_t type, int root, ncclComm_t communicator,
                          cudaStream_t stream, const NcclCollConfig* config) {
    const NcclCollConfig unset;
    if (config->size < unset.size || config->magic != unset.magic || config->force_algorithms != 1) {
      misuse("a configuration that NCCL refuses");
    }
    ++current->counts.configured_broadcasts;
    current->counts.broadcast_ctas = config->max_ctas;
    current->counts.profiler_tag = config->user_profiler_tag;
    return broadcast(data, count, type, root, communicator, stream);
  };
}

void fill_required(NcclFunctions& f) {
  f.version = 23203;
  f.get_unique_id = [](ncclUniqueId* id) {
    *id = new_id();
    return ncclSuccess;
  };
  f.comm_init_rank_config = [](ncclComm_t* out, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
    ++current->counts.inits;
    return current->state().init(out, size, id, rank, config);
  };
  f.comm_split = [](ncclComm_t communicator, int color, int key, ncclComm_t* out, ncclConfig_t* config) {
    current->state().check_ready(communicator, "ncclCommSplit");
    current->state().check_config(*config);
    ++current->counts.splits;
    return current->state().split(*of(communicator), color, key, out);
  };
  f.comm_finalize = [](ncclComm_t communicator) {
    current->state().check_ready(communicator, "ncclCommFinalize");
    return ncclSuccess;
  };
  f.comm_destroy = [](ncclComm_t communicator) {
    current->state().check_ready(communicator, "ncclCommDestroy");
    ++current->counts.destroys;
    current->state().stop(communicator, true);
    return ncclSuccess;
  };
  f.comm_abort = [](ncclComm_t communicator) {
    current->state().check_call(communicator, "ncclCommAbort");
    ++current->counts.aborts;
    if (current->faults.hanging_bytes != 0) return hang();
    current->state().abort(communicator);
    return ncclSuccess;
  };
  f.comm_get_async_error = [](ncclComm_t communicator, ncclResult_t* state) {
    return current->state().async_error(communicator, state);
  };
  f.get_error_string = [](ncclResult_t code) {
    return code == ncclRemoteError ? "remote process exited or there was a network error" : "some NCCL error";
  };
  f.get_last_error = [](ncclComm_t) -> const char* { return "the fake's last words"; };
  f.broadcast = [](const void*, void* data, size_t count, ncclDataType_t type, int root, ncclComm_t communicator,
                   cudaStream_t stream) { return broadcast(data, count, type, root, communicator, stream); };
  f.group_start = [] {
    if (current->state().call_fails()) return ncclSystemError;
    ++group.depth;
    return ncclSuccess;
  };
  f.group_end = [] { return end_group(); };
}

}  // namespace

FakeNccl::FakeNccl(std::unique_ptr<Worlds> worlds) : state_(std::make_unique<State>(*this, std::move(worlds))) {
  current = this;
  free_device_memory_again();
  fill_required(functions);
  fill_optional(functions);
  fill_newest(functions);
}

FakeNccl::~FakeNccl() {
  state_->closing = true;
  while (state_->hanging != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  state_->jobs.clear();
  state_->device.close();
  free_device_memory_again();  // No work is left.
  current = nullptr;
}

std::string FakeNccl::misuses() const {
  const std::lock_guard lock(state_->misuse_mutex);
  std::string text;
  for (const std::string& what : state_->misuses) text += what + "\n";
  return text;
}

bool FakeNccl::settled_after(int broadcasts) const {
  const std::lock_guard lock(state_->mutex);
  return counts.broadcasts == broadcasts && std::ranges::none_of(state_->communicators, [](const auto& c) {
           return !c->freed && (c->launching || c->job);
         });
}

int FakeNccl::living() const {
  const std::lock_guard lock(state_->mutex);
  return static_cast<int>(std::ranges::count_if(state_->communicators, [](const auto& c) { return !c->freed; }));
}

void FakeNccl::fail_call(int device, int call) {
  state_->failed = false;
  state_->calls_left = call;
  state_->failing_device = device;
}

void FakeNccl::kill(int rank) {
  const std::lock_guard lock(state_->mutex);
  for (const auto& communicator : state_->communicators) {
    if (communicator->rank == rank && !communicator->freed) communicator->world->leave(rank);
  }
}

bool FakeNccl::call_has_failed() const { return state_->failed; }

DeviceApi& FakeNccl::device() { return state_->device; }

NcclRuntime FakeNccl::runtime() {
  NcclRuntime runtime;
  runtime.functions = &functions;
  runtime.device = &state_->device;
  runtime.info.version = functions.version;
  return runtime;
}

}  // namespace sparsecast::test

#endif
