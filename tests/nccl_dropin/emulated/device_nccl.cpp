// SPDX-License-Identifier: Apache-2.0
#include "nccl_dropin/emulated/device_nccl.hpp"

#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "nccl_dropin/fake_ranks.hpp"
#include "nccl_dropin/real_library.hpp"
#include "tests/support/fake_world.hpp"

// The library has the functions for a real device. Here they are compiled once more, over the emulated runtime, and the
// linker puts them in the place of the library's (--wrap, tests/EmulatedMachine.cmake).
#define why_driver_is_too_old emulated_why_driver_is_too_old
#define leave_out_old_devices emulated_leave_out_old_devices
#define cuda_device_api emulated_device_api
#define survey_devices emulated_survey
#include "transport/nccl/cuda_device_api.cpp"  // NOLINT(bugprone-suspicious-include)
#undef survey_devices
#undef cuda_device_api

using sparsecast::Bytes;

struct ncclComm {
  std::shared_ptr<sparsecast::test::World> world;
  int rank = 0;
  std::uint64_t broadcasts = 0;
  bool in_progress = false;
  std::deque<Bytes> received;  ///< Copies on a stream may come after the call.
};

namespace sparsecast::test {
namespace {

thread_local NcclCounts counts_of_thread;

Worlds& worlds() {
  static const std::unique_ptr<Worlds> made = make_thread_worlds();
  return *made;
}

ncclResult_t get_unique_id(ncclUniqueId* id) {
  *id = id_of(worlds().new_id());
  return ncclSuccess;
}

ncclResult_t init_config(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  auto made = std::make_unique<ncclComm>();
  made->world = worlds().of(world_of(id), size);
  made->rank = rank;
  made->world->join(rank);
  const bool blocks = config == nullptr || config->blocking != 0;
  if (blocks && !wait_until([&] { return made->world->all_joined(); })) return ncclRemoteError;
  *comm = made.release();
  return blocks ? ncclSuccess : ncclInProgress;
}

ncclResult_t init(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  return init_config(comm, size, id, rank, nullptr);
}

ncclResult_t end(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}

/// Says once that a broadcast is in progress, as a communicator does that does not block.
ncclResult_t async_error(ncclComm_t comm, ncclResult_t* state) {
  *state = comm->in_progress || !comm->world->all_joined() ? ncclInProgress : ncclSuccess;
  comm->in_progress = false;
  return ncclSuccess;
}

ncclResult_t broadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  const std::size_t bytes = count * dropin::size_of(type);
  ++counts_of_thread.broadcasts;
  counts_of_thread.bytes += bytes;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) return ncclUnhandledCudaError;
  if (status != cudaStreamCaptureStatusNone) {
    ++counts_of_thread.captured;
    return ncclSuccess;
  }
  const std::uint64_t number = comm->broadcasts++;
  if (comm->rank == root) {
    Bytes sent(bytes);
    cudaMemcpyAsync(sent.data(), from, bytes, cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
    comm->world->arrive(number, {comm->rank, root, number, sent});
    if (to != from) cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  } else {
    comm->world->arrive(number, {comm->rank, root, number, {}});
    std::optional<Message> message;
    if (!wait_until([&] { return (message = comm->world->message(number)).has_value(); })) return ncclRemoteError;
    if (message->data.size() != bytes) return ncclInternalError;
    const Bytes& received = comm->received.emplace_back(std::move(message->data));
    cudaMemcpyAsync(to, received.data(), bytes, cudaMemcpyHostToDevice, stream);
  }
  comm->in_progress = true;
  return ncclInProgress;
}

}  // namespace

NcclCounts nccl_counts() { return counts_of_thread; }

std::vector<dropin::Slot*>& slots_of_thread() {
  thread_local std::vector<dropin::Slot*> slots;
  return slots;
}

DeviceApi& device_api() __asm__("__wrap__ZN10sparsecast15cuda_device_apiEv");
DeviceApi& device_api() { return emulated_device_api(); }

DeviceSurvey survey() __asm__("__wrap__ZN10sparsecast14survey_devicesEv");
DeviceSurvey survey() { return emulated_survey(); }

void real_make_endpoint(dropin::Slot& slot, std::uint64_t fill, bool is_root,
                        int device) __asm__("__real__ZN10sparsecast6dropin13make_endpointERNS0_4SlotEmbi");
void note_endpoint(dropin::Slot& slot, std::uint64_t fill, bool is_root,
                   int device) __asm__("__wrap__ZN10sparsecast6dropin13make_endpointERNS0_4SlotEmbi");
void note_endpoint(dropin::Slot& slot, std::uint64_t fill, bool is_root, int device) {
  real_make_endpoint(slot, fill, is_root, device);
  slots_of_thread().push_back(&slot);
}

}  // namespace sparsecast::test

namespace sparsecast::dropin {

/// In the place of src/nccl_dropin/real_library.cpp, which loads a file.
const RealLibrary& real_library() {
  static const RealLibrary library = [] {
    RealLibrary fake;
    NcclFunctions& f = fake.functions;
    f.get_unique_id = test::get_unique_id;
    f.comm_init_rank_config = test::init_config;
    f.comm_destroy = test::end;
    f.comm_abort = test::end;
    f.comm_get_async_error = test::async_error;
    f.get_error_string = [](ncclResult_t) { return "an error of the fake"; };
    f.broadcast = test::broadcast;
    f.group_start = [] { return ncclSuccess; };
    f.group_end = [] { return ncclSuccess; };
    fake.comm_init_rank = test::init;
    fake.bcast = [](void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
      return test::broadcast(buffer, buffer, count, type, root, comm, stream);
    };
    return fake;
  }();
  return library;
}

}  // namespace sparsecast::dropin
