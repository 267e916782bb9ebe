// SPDX-License-Identifier: Apache-2.0

// The functions of sparsecast.h: handles and arguments are checked here, and no exception leaves.

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "capi/boundary.hpp"
#include "capi/buffer.hpp"
#include "capi/communicator.hpp"
#include "sparsecast/tcp_transport.hpp"
#include "sparsecast/version.hpp"

namespace sparsecast::capi {

// Handles that a C program holds. A handle is a number, never an address: a handle that is stale, or was never given
// out, is recognised without reading any memory behind it.

/// Maps handles (opaque pointers of type Handle) to the objects that they stand for. Thread-safe.
template <class Handle, class Object>
class HandleTable {
 public:
  /// Returns the table of the process. It is never destroyed, because a program may use its handles until its last
  /// instruction.
  static HandleTable& instance() {
    static HandleTable* const table = new HandleTable;
    return *table;
  }

  Handle add(std::shared_ptr<Object> object) {
    const std::lock_guard lock(mutex_);
    const std::uintptr_t number = next_;
    objects_.emplace(number, std::move(object));
    next_ += kStep;
    return reinterpret_cast<Handle>(number);
  }
  /// Returns the object, or null for a number that is no handle.
  std::shared_ptr<Object> find(Handle handle) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(reinterpret_cast<std::uintptr_t>(handle));
    return found == objects_.end() ? nullptr : found->second;
  }
  std::shared_ptr<Object> remove(Handle handle) {
    const std::lock_guard lock(mutex_);
    auto node = objects_.extract(reinterpret_cast<std::uintptr_t>(handle));
    return node.empty() ? nullptr : std::move(node.mapped());
  }
  template <class Condition>
  void remove_if(const Condition& condition) {
    const std::lock_guard lock(mutex_);
    std::erase_if(objects_, [&](const auto& entry) { return condition(*entry.second); });
  }

 private:
  static constexpr std::uintptr_t kStep = 16;
  std::mutex mutex_;
  std::unordered_map<std::uintptr_t, std::shared_ptr<Object>> objects_;
  std::uintptr_t next_ = kStep;
};

namespace {

using Communicators = HandleTable<scComm_t, Communicator>;
using Buffers = HandleTable<scBuffer_t, BroadcastBuffer>;

static_assert(sizeof(scUniqueId) == sizeof(UniqueId));

std::shared_ptr<Communicator> find(scComm_t handle) {
  auto comm = Communicators::instance().find(handle);
  require_usage(comm != nullptr, "this is no communicator, or it was destroyed");
  return comm;
}

std::shared_ptr<BroadcastBuffer> find(scBuffer_t handle) {
  auto buffer = Buffers::instance().find(handle);
  require_usage(buffer != nullptr, "this is no buffer, or it was deregistered, or its communicator was destroyed");
  return buffer;
}

/// Runs `body` as the only call in the communicator, which keeps the message of a failure.
template <class Body>
scResult_t alone_in(Communicator& comm, const Body& body) noexcept {
  const std::unique_lock lock(comm.in_use, std::try_to_lock);
  if (!lock.owns_lock()) {
    return guarded([] { throw Error(ErrorCode::kUsage, "another thread is using this communicator"); });
  }
  try {
    body();
    return scSuccess;
  } catch (...) {
    return take_exception(&comm.last_error);
  }
}

template <class Handle, class Body>
scResult_t with(Handle handle, const Body& body) noexcept {
  return guarded_result([&] {
    const auto object = find(handle);
    if constexpr (std::is_same_v<Handle, scComm_t>) {
      return alone_in(*object, [&] { body(object); });
    } else {
      return alone_in(object->comm(), [&] { body(object); });
    }
  });
}

/// Collective even when arguments are invalid, so that a wrong argument on this rank is an error on the other ranks,
/// not a timeout.
scResult_t register_tensors(scComm_t handle, const scTensor_t* tensors, int count, scMemory_t kind,
                            scBuffer_t* result) noexcept {
  if (result != nullptr) *result = nullptr;
  return with(handle, [&](const std::shared_ptr<Communicator>& comm) {
    TensorArguments arguments;
    std::unique_ptr<BufferTensors> own;
    std::optional<Error> failure;
    try {
      require_usage(result != nullptr, "no place for the buffer's handle");
      arguments = checked(tensors, count, kind);
      own = std::make_unique<BufferTensors>(*arguments.table, arguments.data, kind, *comm);
    } catch (const Error& error) {
      failure = error.within("scRegister");
    } catch (const std::exception& error) {
      failure = Error(ErrorCode::kPeerFailed, error.what(), "scRegister");
    }
    const scMemory_t known = failure ? scMemoryHost : kind;
    auto buffer =
        std::make_shared<BroadcastBuffer>(comm, arguments.table, known, std::move(own), failure ? &*failure : nullptr);
    *result = Buffers::instance().add(std::move(buffer));
  });
}

/// Removes the handles of a communicator and of its buffers.
std::shared_ptr<Communicator> forget(scComm_t handle) {
  auto comm = Communicators::instance().remove(handle);
  require_usage(comm != nullptr, "this is no communicator, or it was destroyed already");
  Buffers::instance().remove_if([&](BroadcastBuffer& buffer) { return &buffer.comm() == comm.get(); });
  return comm;
}

template <class Make>
scResult_t init(scComm_t* result, const scConfig_t* config, const Make& make) noexcept {
  if (result != nullptr) *result = nullptr;
  return guarded([&] {
    require_usage(result != nullptr, "no place for the communicator's handle");
    *result = Communicators::instance().add(make(checked(config)));
  });
}

scResult_t get_unique_id(scUniqueId* id, const UniqueIdOptions& options) noexcept {
  return guarded([&] {
    require_usage(id != nullptr, "no place for the unique id");
    const UniqueId made = make_unique_id(options);
    std::memcpy(id->internal, made.bytes.data(), sizeof(id->internal));
  });
}

}  // namespace

}  // namespace sparsecast::capi

using namespace sparsecast;
using namespace sparsecast::capi;

extern "C" {

const char* scGetLastError(scComm_t comm) {
  const auto found = Communicators::instance().find(comm);
  return found ? found->last_error.c_str() : "";
}

scResult_t scGetVersion(int* version) {
  return guarded([&] {
    require_usage(version != nullptr, "no place for the version");
    static_assert(SC_VERSION_CODE == SC_VERSION(kVersionMajor, kVersionMinor, kVersionPatch));
    *version = SC_VERSION_CODE;
  });
}

scResult_t scGetUniqueId(scUniqueId* id) { return get_unique_id(id, {}); }

scResult_t scGetUniqueIdOn(scUniqueId* id, const char* network_interface) {
  return guarded_result([&] {
    require_usage(network_interface != nullptr, "no network interface");
    UniqueIdOptions options;
    options.interface = network_interface;
    return get_unique_id(id, options);
  });
}

scResult_t scCommInitRank(scComm_t* comm, int nranks, scUniqueId id, int rank, const scConfig_t* config) {
  return init(comm, config, [&](const scConfig_t& known) {
    require_usage(known.transport != scTransportMpi, "the MPI transport is for scCommInitMPI");
    UniqueId own;
    std::memcpy(own.bytes.data(), id.internal, sizeof(id.internal));
    return Communicator::over_tcp(own, rank, nranks, known);
  });
}

scResult_t scCommInitMPI(scComm_t* comm, const void* mpi_comm, const scConfig_t* config) {
  return init(comm, config, [&](const scConfig_t& known) { return Communicator::over_mpi(mpi_comm, known); });
}

scResult_t scCommCount(scComm_t comm, int* count) {
  return with(comm, [&](const std::shared_ptr<Communicator>& found) {
    require_usage(count != nullptr, "no place for the count");
    *count = found->size();
  });
}

scResult_t scCommUserRank(scComm_t comm, int* rank) {
  return with(comm, [&](const std::shared_ptr<Communicator>& found) {
    require_usage(rank != nullptr, "no place for the rank");
    *rank = found->rank();
  });
}

scResult_t scCommTransport(scComm_t comm, const char** name) {
  return with(comm, [&](const std::shared_ptr<Communicator>& found) {
    require_usage(name != nullptr, "no place for the name");
    *name = found->transport_name();
  });
}

scResult_t scCommGetAsyncError(scComm_t comm, scResult_t* error) {
  return guarded([&] {
    require_usage(error != nullptr, "no place for the error");
    *error = scSuccess;
    const auto found = find(comm);
    const std::unique_lock lock(found->in_use, std::try_to_lock);
    if (!lock.owns_lock()) return;
    if (const std::optional<std::string> reason = found->broken()) {
      *error = scPeerFailed;
      found->last_error = *reason;
    }
  });
}

scResult_t scCommDestroy(scComm_t comm) {
  return guarded([&] {
    if (comm != nullptr) forget(comm);
  });
}

scResult_t scCommAbort(scComm_t comm) {
  return guarded([&] {
    if (comm == nullptr) return;
    const auto found = find(comm);
    const std::unique_lock lock(found->in_use, std::try_to_lock);
    require_usage(lock.owns_lock(), "another thread is using this communicator");
    forget(comm);
    found->abort("scCommAbort was called");
  });
}

scResult_t scRegister(scComm_t comm, void* data, size_t count, scDataType_t dtype, scMemory_t memory,
                      scBuffer_t* buffer) {
  const std::uint64_t shape = count;
  const scTensor_t tensor = {"buffer", data, dtype, 1, &shape};
  return register_tensors(comm, &tensor, 1, memory, buffer);
}

scResult_t scRegisterTensors(scComm_t comm, const scTensor_t* tensors, int ntensors, scMemory_t memory,
                             scBuffer_t* buffer) {
  return register_tensors(comm, tensors, ntensors, memory, buffer);
}

scResult_t scDeregister(scBuffer_t buffer) {
  return guarded([&] {
    if (buffer == nullptr) return;
    require_usage(Buffers::instance().remove(buffer) != nullptr, "this is no buffer, or it was deregistered already");
  });
}

scResult_t scBroadcast(scBuffer_t buffer, int root, struct CUstream_st* stream) {
  return with(buffer, [&](const std::shared_ptr<BroadcastBuffer>& found) { found->broadcast(root, stream); });
}

scResult_t scAudit(scBuffer_t buffer) {
  return with(buffer, [&](const std::shared_ptr<BroadcastBuffer>& found) { found->audit(); });
}

scResult_t scGetStats(scBuffer_t buffer, scStats_t* stats) {
  return with(buffer, [&](const std::shared_ptr<BroadcastBuffer>& found) {
    require_usage(stats != nullptr, "no place for the statistics");
    *stats = found->stats();
  });
}
}
