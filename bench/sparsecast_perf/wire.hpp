// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sparsecast/sync.hpp"
#include "sparsecast_perf/group.hpp"
#include "sparsecast_perf/options.hpp"

namespace sparsecast {
class NcclTransport;
}

namespace sparsecast::perf {

/// The transport that is measured, and the plain broadcast of the same library to measure it against. Every call is
/// collective.
class Wire {
 public:
  virtual ~Wire() = default;
  /// Says that from now on times count: warming up is over. Not collective.
  virtual void start_timing() noexcept {}
  virtual Transport& transport() noexcept = 0;
  /// The transport, where it takes frames in device memory; null otherwise.
  virtual NcclTransport* device_transport() noexcept { return nullptr; }

  /// The dense broadcast of memory of the host. On receivers the records have their sizes already.
  virtual void broadcast(std::vector<Bytes>& records, Deadline deadline) = 0;
  /// The same of memory of the device, in place, where device_transport() is not null.
  virtual void broadcast_device(void* /*d_data*/, std::uint64_t /*bytes*/, Deadline /*deadline*/) {
    throw Error(ErrorCode::kUsage, "this transport broadcasts host memory only");
  }

  /// Names and versions, for the table's head.
  virtual std::vector<std::string> libraries() const = 0;
  /// What the dense broadcast calls.
  virtual const char* dense_call() const noexcept = 0;
};

/// Makes the wire of this run, paced if the options say so. `device` is the CUDA ordinal of this rank, for NCCL.
std::unique_ptr<Wire> make_wire(Carrier carrier, Group& group, const Options& options, int device);

/// "Open MPI v4.1.4"; in a run that MPI has started.
std::string mpi_library();

/// One for each carrier.
std::unique_ptr<Wire> make_mpi_wire();
std::unique_ptr<Wire> make_nccl_wire(Group& group, const Options& options, int device);
std::unique_ptr<Wire> make_tcp_wire(Group& group);

}  // namespace sparsecast::perf
