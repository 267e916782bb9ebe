// SPDX-License-Identifier: Apache-2.0
#pragma once

// The object behind a scBuffer_t: a publisher on the rank that was the last root, a subscriber on the others.
//
//     new --anchor--> following(root, version) --changes of that root--> following(root, version + n)
//        \                 |  another root, any failure, a failed audit
//         \----------------+--> the next broadcast is an anchor
//
// Before each broadcast the ranks exchange which root and version they follow. Changes suffice only when all ranks
// follow the same version of the current root. So a rank that was left behind, for any reason, makes the broadcast an
// anchor.

#include <memory>
#include <vector>

#include "capi/buffer_tensors.hpp"
#include "sparsecast/publisher.hpp"
#include "sparsecast/subscriber.hpp"

namespace sparsecast::capi {

class BroadcastBuffer {
 public:
  /// Registers a buffer; all ranks must do so together. `kind` is the memory in which the tensors lie. `failure` is
  /// null, or the reason why this rank cannot register; the other ranks are told of it, and `table` and `tensors` may
  /// then be null.
  BroadcastBuffer(std::shared_ptr<Communicator> comm, std::shared_ptr<const TensorTable> table, scMemory_t kind,
                  std::unique_ptr<BufferTensors> tensors, const Error* failure);

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
  /// Sends all bytes of the tensors of rank `root` to all ranks; all ranks must call it. The other ranks then verify
  /// that their digest is `expected`. Throws unless all ranks have succeeded.
  void overwrite(int root, const StateDigest& expected, Deadline deadline);

  std::shared_ptr<Communicator> comm_;
  std::uint64_t number_;
  std::shared_ptr<const TensorTable> table_;
  scMemory_t kind_;
  std::unique_ptr<BufferTensors> tensors_;
  std::unique_ptr<Publisher> publisher_;
  std::unique_ptr<Subscriber> subscriber_;
  /// Root whose next changes can be applied to this buffer; -1 if there is none, so that an anchor is needed.
  int base_root_ = -1;
  scStats_t stats_{};
};

}  // namespace sparsecast::capi
