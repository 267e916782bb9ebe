#pragma once

// Where a buffer's tensors lie, and how they get into and out of records: host or device.

#include <memory>
#include <vector>

#include "capi/communicator.hpp"
#include "sparsecast/publisher.hpp"
#include "sparsecast/subscriber.hpp"

namespace sparsecast::capi {

class BufferMemory {
 public:
  virtual ~BufferMemory() = default;

  /// The root's end, whose copy of the tensors is what they are now.
  virtual std::unique_ptr<Publisher> make_publisher(std::uint64_t version) = 0;
  /// A receiver's end; its digest is what the tensors are now.
  virtual std::unique_ptr<Subscriber> make_subscriber(std::uint64_t version) = 0;

  /// From here on, work begins behind what is on `stream` now.
  virtual void begin_behind(CUstream_st* stream) = 0;
  /// Collective: all bytes of all tensors, as they are.
  virtual void send_all(Communicator& comm, Deadline deadline) = 0;
  /// Overwrites all tensors. Throws Error{kCorrupt} when other bytes come than belong here.
  virtual void receive_all(Communicator& comm, int root, Deadline deadline) = 0;
  /// Collective: what has changed.
  virtual SyncReport send_changes(Publisher& publisher, Communicator& comm, Deadline deadline) = 0;
  virtual SyncReport receive_changes(Subscriber& subscriber, Communicator& comm, int root, Deadline deadline) = 0;
};

/// `data[i]` is the memory of table tensor i.
std::unique_ptr<BufferMemory> make_host_memory(std::shared_ptr<const TensorTable> table, const std::vector<void*>& data,
                                               const scConfig_t& config);

/// The same in device memory, on the communicator's device. Throws Error{kUnsupported} without a device backend, or
/// when the communicator's transport is not NCCL.
std::unique_ptr<BufferMemory> make_device_memory(std::shared_ptr<const TensorTable> table,
                                                 const std::vector<void*>& d_data, Communicator& comm);

/// What is left until the deadline, for calls that take a timeout; at least a millisecond, so that they report it.
std::chrono::milliseconds time_left(Deadline deadline);

}  // namespace sparsecast::capi
