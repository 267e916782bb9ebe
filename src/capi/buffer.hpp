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

/// Memory of a buffer's tensors, on the host or on a device: what a broadcast needs beside publishers, subscribers and
/// their syncs, which are the same for both.
class BufferMemory {
 public:
  virtual ~BufferMemory() = default;

  const std::shared_ptr<const TensorTable>& table() const noexcept { return table_; }
  const std::vector<TensorRef>& tensors() const noexcept { return tensors_; }  ///< Parallel to the table.
  const DeviceOptions& device() const noexcept { return device_; }             ///< For work on them.

  /// Makes all later work of this object wait for what is on `stream` now.
  virtual void begin_behind(CUstream_st* stream) = 0;
  /// Waits for that: what reads all tensors at once does not wait for events.
  virtual void wait_until_ready() = 0;
  /// Returns the event of that; null on the host.
  virtual CUevent_st* ready() const noexcept = 0;
  /// Collective: all bytes of all tensors, as the root has them. Throws Error{kCorrupt} when other bytes come than
  /// belong here.
  virtual void broadcast_all(Communicator& comm, int root, Deadline deadline) = 0;

 protected:
  BufferMemory(std::shared_ptr<const TensorTable> table, std::vector<TensorRef> tensors, const DeviceOptions& device)
      : table_(std::move(table)), tensors_(std::move(tensors)), device_(device) {}

 private:
  std::shared_ptr<const TensorTable> table_;
  std::vector<TensorRef> tensors_;
  DeviceOptions device_;
};

/// Creates the host memory of a buffer; `data[i]` is table tensor i.
std::unique_ptr<BufferMemory> make_host_memory(std::shared_ptr<const TensorTable> table,
                                               const std::vector<void*>& data);

/// Creates the memory of tensors on the communicator's device; `d_data[i]` is table tensor i. Throws
/// Error{kUnsupported} without a device backend, or when the communicator's transport is not NCCL.
std::unique_ptr<BufferMemory> make_device_memory(std::shared_ptr<const TensorTable> table,
                                                 const std::vector<void*>& d_data, Communicator& comm);

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
  void make_publisher(std::uint64_t version);
  void make_subscriber(std::uint64_t version);
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
