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

/// Message that each rank sends at the beginning of a step. All ranks decide from the same messages, and a rank that
/// called another function is detected at once. Plain numbers: the ranks run on machines of one byte order.
struct Notice {
  enum Kind : std::uint32_t { kRegister = 1, kBroadcast = 2, kAnchor = 3 };
  std::uint32_t kind = 0;
  std::int32_t status = 0;  ///< An ErrorCode: this rank cannot take part.
  std::uint64_t buffer = 0;
  std::int32_t root = -1;
  std::uint32_t memory = 0;
  Hash128 table;
  // The fields below may differ between ranks.
  std::uint64_t version = 0;
  std::int32_t base_root = -1;  ///< Root whose deltas fit this rank's buffer; -1: none.
  std::uint32_t reserved = 0;
  StateDigest digest;
};
static_assert(sizeof(Notice) == 72);

class Communicator {
 public:
  /// Make a communicator. Throw the errors of Rendezvous::meet and NcclTransport::open.
  static std::shared_ptr<Communicator> over_tcp(const UniqueId& id, int rank, int size, const scConfig_t& config);
  static std::shared_ptr<Communicator> over_mpi(const void* communicator, const scConfig_t& config);

  Communicator(std::shared_ptr<ControlChannel> control, const scConfig_t& config);
  /// Uses an NCCL transport that is open already, and the device that it works on.
  Communicator(std::shared_ptr<ControlChannel> control, const scConfig_t& config,
               std::unique_ptr<NcclTransport> transport, DeviceApi& device);

  int rank() const noexcept { return control_->rank(); }
  int size() const noexcept { return control_->size(); }
  const scConfig_t& config() const noexcept { return config_; }
  Deadline deadline() const;
  Transport& transport() noexcept { return *transport_; }
  /// Returns the NCCL transport, or null when another transport is used.
  NcclTransport* nccl() noexcept { return nccl_; }
  /// Returns the device of the NCCL transport, or null when another transport is used.
  DeviceApi* device_api() noexcept { return device_; }
  const char* transport_name() const noexcept;

  /// Collective: returns every rank's notice, once all ranks are known to take the same step and none has refused.
  /// Throws Error{kGroupMismatch} that names two ranks, Error{kPeerFailed} that names one, or this rank's own
  /// `failure`.
  std::vector<Notice> exchange(Notice own, const Error* failure, Deadline deadline);

  /// Returns the number of the next buffer. It is the same on every rank, because registering is collective.
  std::uint64_t next_buffer() noexcept { return ++buffers_; }
  /// Returns why the communicator cannot be used any more; nullopt while it can. Does not wait.
  std::optional<std::string> broken() noexcept { return control_->aborted(); }
  /// Notifies the other ranks that this rank gives up.
  void abort(const std::string& reason) noexcept;

  std::mutex in_use;       ///< Held during a call: a second thread is refused.
  std::string last_error;  ///< The sentence of the last failure.

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
