// SPDX-License-Identifier: Apache-2.0
#pragma once

// The object behind a scComm_t: a control channel, and a separate transport that carries records.

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "sparsecast/digest.hpp"
#include "sparsecast/nccl_transport.hpp"
#include "sparsecast/sparsecast.h"
#include "sparsecast/sync.hpp"
#include "sparsecast/tcp_transport.hpp"

namespace sparsecast {
class DeviceApi;
}

namespace sparsecast::capi {

/// Message that each rank sends to all ranks at the beginning of a step. All ranks decide from the same messages, and a
/// rank that called another function is detected at once. The struct is sent as it is in memory, because all ranks run
/// on machines of one byte order.
struct Notice {
  enum Kind : std::uint32_t { kRegister = 1, kBroadcast = 2, kAnchor = 3 };
  std::uint32_t kind = 0;
  std::int32_t status = 0;  ///< ErrorCode of the reason why this rank cannot take part; 0: it can.
  std::uint64_t buffer = 0;
  std::int32_t root = -1;
  std::uint32_t memory = 0;
  Hash128 table;
  // The fields below may differ between ranks.
  std::uint64_t version = 0;
  std::int32_t base_root = -1;  ///< Root whose next changes can be applied to this rank's buffer; -1 if there is none.
  std::uint32_t reserved = 0;
  StateDigest digest;
};
static_assert(sizeof(Notice) == 72);

class Communicator {
 public:
  /// Makes a communicator of `size` ranks that meet at `id` by TCP, with this process as rank `rank`. Throws the errors
  /// of Rendezvous::meet and NcclTransport::open, and Error{kGroupMismatch} if the ranks' configurations differ.
  static std::shared_ptr<Communicator> over_tcp(const UniqueId& id, int rank, int size, const scConfig_t& config);
  /// Makes a communicator of the ranks of an MPI communicator; `communicator` points to its MPI_Comm. Throws the errors
  /// of NcclTransport::open, and Error{kGroupMismatch} if the ranks' configurations differ.
  static std::shared_ptr<Communicator> over_mpi(const void* communicator, const scConfig_t& config);

  Communicator(std::shared_ptr<ControlChannel> control, const scConfig_t& config);
  /// Makes a communicator that uses `transport`, an NCCL transport that is open already. `device` has the functions of
  /// the device on which the transport works.
  Communicator(std::shared_ptr<ControlChannel> control, const scConfig_t& config,
               std::unique_ptr<NcclTransport> transport, DeviceApi& device);

  int rank() const noexcept { return control_->rank(); }
  int size() const noexcept { return control_->size(); }
  const scConfig_t& config() const noexcept { return config_; }
  Deadline deadline() const;
  Transport& transport() noexcept { return *transport_; }
  /// Returns the transport if it is NCCL, otherwise null.
  NcclTransport* nccl() noexcept { return nccl_; }
  /// Returns the functions of the device on which NCCL works; null if the transport is not NCCL.
  DeviceApi* device_api() noexcept { return device_; }
  const char* transport_name() const noexcept;

  /// Sends this rank's notice to all ranks, and returns the notices of all ranks, indexed by rank; all ranks must call
  /// it. `failure` is null, or the reason why this rank cannot take part. Throws `failure` if it is set,
  /// Error{kPeerFailed} that names another rank that cannot take part, and Error{kGroupMismatch} that names a rank
  /// whose notice does not fit that of rank 0.
  std::vector<Notice> exchange(Notice own, const Error* failure, Deadline deadline);

  /// Returns the number for a new buffer. It is the same on every rank, because all ranks register together.
  std::uint64_t next_buffer() noexcept { return ++buffers_; }
  /// Returns why the communicator cannot be used any more, or nullopt if it can. Does not wait.
  std::optional<std::string> broken() noexcept { return control_->aborted(); }
  /// Tells the other ranks that this rank gives up, and the reason.
  void abort(const std::string& reason) noexcept;

  std::mutex in_use;       ///< Held during a call; if a second thread makes a call meanwhile, that call is refused.
  std::string last_error;  ///< Message of the last failure of a call.

 private:
  void choose_transport(bool over_mpi, Deadline deadline);

  std::shared_ptr<ControlChannel> control_;
  scConfig_t config_;
  std::unique_ptr<Transport> transport_;
  NcclTransport* nccl_ = nullptr;
  DeviceApi* device_ = nullptr;
  scTransport_t kind_ = scTransportTcp;
  std::uint64_t buffers_ = 0;
};

}  // namespace sparsecast::capi
