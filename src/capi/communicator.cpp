// SPDX-License-Identifier: Apache-2.0
#include "capi/communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "sparsecast/device.hpp"
#include "sparsecast/mpi_transport.hpp"
#include "sparsecast/tcp_transport.hpp"
#include "transport/control/blobs.hpp"
#ifdef SPARSECAST_HAVE_NCCL
#include "transport/nccl/device_api.hpp"
#endif

namespace sparsecast::capi {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// Transports that a rank could use, and the settings that it was given; exchanged when a communicator is made.
struct Ability {
  std::int32_t wanted = 0;
  std::int32_t timeout_ms = 0;
  std::uint32_t nccl = 0;
  std::uint32_t reserved = 0;
  std::array<char, 64> device{};  ///< UUID of the device that NCCL would use; empty without NCCL or a device.
};

/// Returns the UUID of the device that NCCL would use, or an empty string without NCCL or a device.
std::string nccl_device(int wanted) {
#ifdef SPARSECAST_HAVE_NCCL
  try {
    if (survey_devices().devices.empty()) return {};
    nccl_library();
    DeviceApi& device = cuda_device_api();
    return device.uuid(wanted < 0 ? device.current_device() : wanted);
  } catch (const Error&) {
  }
#endif
  (void)wanted;
  return {};
}

const char* name_of(std::uint32_t kind) {
  switch (kind) {
    case Notice::kRegister:
      return "scRegister";
    case Notice::kBroadcast:
      return "scBroadcast";
    case Notice::kAnchor:
      return "an anchor";
  }
  return "something unknown";
}

/// Returns a sentence that names the first difference between two notices, or an empty string when they fit together.
std::string difference(const Notice& a, const Notice& b) {
  if (a.kind != b.kind) return fmt::format("calls {}, rank 0 {}", name_of(a.kind), name_of(b.kind));
  if (a.buffer != b.buffer) return fmt::format("means buffer {}, rank 0 buffer {}", a.buffer, b.buffer);
  if (a.root != b.root) return fmt::format("takes rank {} for the root, rank 0 takes {}", a.root, b.root);
  if (a.memory != b.memory) {
    const auto kind = [](std::uint32_t memory) { return memory == scMemoryHost ? "host" : "device"; };
    return fmt::format("has {} memory, rank 0 {} memory", kind(a.memory), kind(b.memory));
  }
  if (a.table != b.table) return "has another count, dtype, name or shape than rank 0";
  return {};
}

}  // namespace

Communicator::Communicator(std::shared_ptr<ControlChannel> control, const scConfig_t& config)
    : control_(std::move(control)), config_(config) {}

Communicator::Communicator(std::shared_ptr<ControlChannel> control, const scConfig_t& config,
                           std::unique_ptr<NcclTransport> transport, DeviceApi& device)
    : control_(std::move(control)),
      config_(config),
      transport_(std::move(transport)),
      nccl_(static_cast<NcclTransport*>(transport_.get())),
      device_(&device),
      kind_(scTransportNccl) {}

std::shared_ptr<Communicator> Communicator::over_tcp(const UniqueId& id, int rank, int size, const scConfig_t& config) {
  const Deadline deadline = steady_clock::now() + milliseconds(config.timeout_ms);
  auto control = Rendezvous::meet(id, rank, size, milliseconds(config.timeout_ms));
  auto comm = std::make_shared<Communicator>(std::move(control), config);
  comm->choose_transport(false, deadline);
  return comm;
}

std::shared_ptr<Communicator> Communicator::over_mpi(const void* communicator, const scConfig_t& config) {
  auto comm = std::make_shared<Communicator>(make_mpi_control_channel(communicator), config);
  comm->choose_transport(true, comm->deadline());
  return comm;
}

Deadline Communicator::deadline() const { return steady_clock::now() + milliseconds(config_.timeout_ms); }

void Communicator::choose_transport(bool over_mpi, Deadline deadline) {
  Ability own;
  own.wanted = config_.transport;
  own.timeout_ms = config_.timeout_ms;
  const bool asks = config_.transport == scTransportAuto || config_.transport == scTransportNccl;
  const std::string device = asks ? nccl_device(config_.device) : std::string();
  own.nccl = device.empty() ? 0 : 1;
  device.copy(own.device.data(), own.device.size() - 1);
  bool all_nccl = true;
  std::set<std::array<char, 64>> devices;
  const std::vector<Bytes> all = control_->all_gather(bytes_of(own), deadline);
  for (std::size_t r = 0; r < all.size(); ++r) {
    const auto ability = value_of<Ability>(all[r], fmt::format("rank {}", r));
    if (ability.wanted != own.wanted || ability.timeout_ms != own.timeout_ms) {
      throw Error(
          ErrorCode::kGroupMismatch,
          fmt::format("the ranks' configurations differ: rank {} has transport {} and {} ms, rank {} has {} and "
                      "{} ms",
                      r, ability.wanted, ability.timeout_ms, rank(), own.wanted, own.timeout_ms));
    }
    all_nccl = all_nccl && ability.nccl != 0 && devices.insert(ability.device).second;
  }
  kind_ = config_.transport;
  if (kind_ == scTransportAuto) kind_ = all_nccl ? scTransportNccl : over_mpi ? scTransportMpi : scTransportTcp;
  if (kind_ == scTransportNccl) {
    NcclOptions options;
    options.device = config_.device;
    auto transport = NcclTransport::open(control_, options, time_left(deadline));
    nccl_ = transport.get();
    transport_ = std::move(transport);
#ifdef SPARSECAST_HAVE_NCCL
    device_ = &cuda_device_api();
#endif
  } else if (kind_ == scTransportMpi) {
    transport_ = make_mpi_transport(control_);
  } else {
    transport_ = make_tcp_transport(control_);
  }
}

const char* Communicator::transport_name() const noexcept {
  return kind_ == scTransportNccl ? "nccl" : kind_ == scTransportMpi ? "mpi" : "tcp";
}

std::vector<Notice> Communicator::exchange(Notice own, const Error* failure, Deadline deadline) {
  if (failure != nullptr) own.status = static_cast<std::int32_t>(failure->code());
  const std::vector<Bytes> all = control_->all_gather(bytes_of(own), deadline);
  std::vector<Notice> notices;
  for (std::size_t r = 0; r < all.size(); ++r) notices.push_back(value_of<Notice>(all[r], fmt::format("rank {}", r)));
  if (failure != nullptr) throw Error(*failure);
  for (std::size_t r = 0; r < notices.size(); ++r) {
    if (notices[r].status != 0) {
      throw Error(ErrorCode::kPeerFailed, fmt::format("rank {} could not take part in {}: {}", r, name_of(own.kind),
                                                      to_string(static_cast<ErrorCode>(notices[r].status))));
    }
  }
  for (std::size_t r = 1; r < notices.size(); ++r) {
    const std::string what = difference(notices[r], notices[0]);
    if (!what.empty()) throw Error(ErrorCode::kGroupMismatch, fmt::format("the ranks disagree: rank {} {}", r, what));
  }
  return notices;
}

void Communicator::abort(const std::string& reason) noexcept {
  if (nccl_ != nullptr) nccl_->abort(reason);
  control_->abort(reason);
}

}  // namespace sparsecast::capi
