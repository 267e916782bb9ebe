// SPDX-License-Identifier: Apache-2.0
#pragma once

// The object behind a scBuffer_t: a publisher on the rank that was the last root, a subscriber on the others.
//
//     new --anchor--> following(root, version) --changes of that root--> following(root, version + n)
//        \                 |  another root, any failure, a failed audit
//         \----------------+--> the next broadcast is an anchor
//
// Before each broadcast the ranks tell each other what they follow. Only when all follow the same version of the very
// root that sends now are changes enough; so a rank that was left behind, by whatever, brings everybody to an anchor.

#include <memory>
#include <vector>

#include "capi/communicator.hpp"
#include "sparsecast/publisher.hpp"
#include "sparsecast/subscriber.hpp"

namespace sparsecast::capi {

// BufferMemory is the memory of a buffer's tensors, on the host or on a device.

class BufferMemory {
 public:
  virtual ~BufferMemory() = default;

  /// Creates the publisher of the root; its snapshot is a copy of the current tensors.
  virtual std::unique_ptr<Publisher> make_publisher(std::uint64_t version) = 0;
  /// Creates the subscriber of a receiver; its digest is that of the current tensors.
  virtual std::unique_ptr<Subscriber> make_subscriber(std::uint64_t version) = 0;

  /// Makes all later work of this object wait for what is on `stream` now.
  virtual void begin_behind(CUstream_st* stream) = 0;
  /// Collective: all bytes of all tensors, as they are.
  virtual void send_all(Communicator& comm, Deadline deadline) = 0;
  /// Overwrites all tensors. Throws Error{kCorrupt} when other bytes come than belong here.
  virtual void receive_all(Communicator& comm, int root, Deadline deadline) = 0;
  /// Collective: what has changed.
  virtual SyncReport send_changes(Publisher& publisher, Communicator& comm, Deadline deadline) = 0;
  virtual SyncReport receive_changes(Subscriber& subscriber, Communicator& comm, int root, Deadline deadline) = 0;
};

/// Creates the host memory of a buffer; `data[i]` is table tensor i.
std::unique_ptr<BufferMemory> make_host_memory(std::shared_ptr<const TensorTable> table, const std::vector<void*>& data,
                                               const scConfig_t& config);

/// Creates the memory of tensors on the communicator's device; `d_data[i]` is table tensor i. Throws
/// Error{kUnsupported} without a device backend, or when the communicator's transport is not NCCL.
std::unique_ptr<BufferMemory> make_device_memory(std::shared_ptr<const TensorTable> table,
                                                 const std::vector<void*>& d_data, Communicator& comm);

/// Returns the time left until the deadline, at least one millisecond, so that a call that takes a timeout reports the
/// expiry itself.
std::chrono::milliseconds time_left(Deadline deadline);

class BroadcastBuffer {
 public:
  /// Collective. `failure`: this rank cannot register, and tells the others; `table` and `memory` may be null then.
  BroadcastBuffer(std::shared_ptr<Communicator> comm, std::shared_ptr<const TensorTable> table, scMemory_t kind,
                  std::unique_ptr<BufferMemory> memory, const Error* failure);

  Communicator& comm() noexcept { return *comm_; }
  void broadcast(int root, CUstream_st* stream);
  void audit();
  const scStats_t& stats() const noexcept { return stats_; }

 private:
  Notice notice(Notice::Kind kind, int root) const;
  void send_changes(int root, Deadline deadline);
  void anchor(int root, std::uint64_t version, Deadline deadline);
  /// Sends the dense bytes and their digest to the ranks whose digests differ.
  void overwrite(int root, const StateDigest& expected, Deadline deadline);

  std::shared_ptr<Communicator> comm_;
  std::uint64_t number_;
  std::shared_ptr<const TensorTable> table_;
  scMemory_t kind_;
  std::unique_ptr<BufferMemory> memory_;
  std::unique_ptr<Publisher> publisher_;
  std::unique_ptr<Subscriber> subscriber_;
  int base_root_ = -1;  ///< Whose deltas fit what is here; -1: an anchor is needed.
  scStats_t stats_{};
};

}  // namespace sparsecast::capi
