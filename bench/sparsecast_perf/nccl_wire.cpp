// SPDX-License-Identifier: Apache-2.0

// NCCL: syncs over NcclTransport; the dense broadcast of device memory is a plain ncclBroadcast of the whole buffer in
// place, on a communicator of its own, with nothing of ours in its way.

#include "sparsecast/error.hpp"
#include "sparsecast/nccl_transport.hpp"
#include "sparsecast_perf/wire.hpp"

#ifdef SPARSECAST_HAVE_NCCL

#include <fmt/format.h>

#include <cstring>

#include "transport/nccl/device_api.hpp"
#include "transport/nccl/nccl_library.hpp"
#include "transport/nccl/watchdog.hpp"

namespace sparsecast::perf {
namespace {

using std::chrono::steady_clock;

/// One non-blocking communicator and one stream.
class PlainNccl {
 public:
  PlainNccl(Group& group, int device, Deadline deadline)
      : api_(cuda_device_api()),
        device_(device),
        nccl_(process_nccl().functions),
        control_(group.open_control()),
        watchdog_(nccl_, control_) {
    api_.use_device(device);
    stream_ = api_.create_stream();
    done_ = api_.create_event();
    ncclUniqueId id{};
    if (group.rank() == kPublisher) check_nccl(nccl_, nccl_.get_unique_id(&id), nullptr, "ncclGetUniqueId");
    const auto own = std::as_bytes(std::span(&id, 1));
    const Bytes shared = group.broadcast(Bytes(own.begin(), own.end()));
    if (shared.size() != sizeof(id)) throw Error(ErrorCode::kGroupMismatch, "the ranks are at different steps");
    std::memcpy(&id, shared.data(), sizeof(id));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t result = nccl_.comm_init_rank_config(&communicator_, group.size(), id, group.rank(), &config);
    check_nccl(nccl_, result, communicator_, kForming);
    watchdog_.settle(communicator_, deadline, kForming);
  }
  ~PlainNccl() {
    if (communicator_ != nullptr) destroy_communicator(nccl_, api_, device_, communicator_);
    api_.destroy_event(done_);
    api_.destroy_stream(stream_);
  }
  PlainNccl(const PlainNccl&) = delete;
  PlainNccl& operator=(const PlainNccl&) = delete;

  void broadcast(void* d_data, std::uint64_t bytes, Deadline deadline) {
    try {
      const ncclResult_t result = nccl_.broadcast(d_data, d_data, bytes, ncclUint8, kPublisher, communicator_,
                                                  static_cast<cudaStream_t>(stream_));
      check_nccl(nccl_, result, communicator_, kBroadcasting);
      watchdog_.settle(communicator_, deadline, kBroadcasting);
      api_.record(done_, stream_);
      watchdog_.wait([&] { return api_.finished(done_); }, communicator_, deadline, kBroadcasting);
    } catch (const Error& error) {
      control_->abort(error.what());  // The others wait for this rank.
      throw;
    }
  }

 private:
  static constexpr const char* kForming = "ncclCommInitRankConfig for the dense broadcast";
  static constexpr const char* kBroadcasting = "ncclBroadcast of the dense weights";

  DeviceApi& api_;
  int device_;
  const NcclFunctions& nccl_;
  std::shared_ptr<ControlChannel> control_;
  Watchdog watchdog_;
  void* stream_ = nullptr;
  void* done_ = nullptr;
  ncclComm_t communicator_ = nullptr;
};

class NcclWire final : public Wire {
 public:
  NcclWire(Group& group, const Options& options, int device) {
    const std::chrono::milliseconds timeout(static_cast<std::int64_t>(options.timeout_seconds * 1000));
    const Deadline deadline = steady_clock::now() + timeout;
    NcclOptions settings;
    settings.device = device;
    transport_ = NcclTransport::open(group.open_control(), settings, timeout);
    if (options.backend == Backend::kCuda) plain_ = std::make_unique<PlainNccl>(group, device, deadline);
  }

  Transport& transport() noexcept override { return *transport_; }
  NcclTransport* device_transport() noexcept override { return transport_.get(); }
  void broadcast(std::vector<Bytes>& records, Deadline deadline) override {
    transport_->broadcast(records, kPublisher, deadline);
  }
  void broadcast_device(void* d_data, std::uint64_t bytes, Deadline deadline) override {
    plain_->broadcast(d_data, bytes, deadline);
  }
  std::vector<std::string> libraries() const override {
    return {fmt::format("NCCL {}", nccl_version_text(transport_->report().library.version))};
  }
  const char* dense_call() const noexcept override {
    return plain_ ? "ncclBroadcast, in place" : "the transport's own broadcast, from host memory";
  }

 private:
  std::unique_ptr<NcclTransport> transport_;
  std::unique_ptr<PlainNccl> plain_;
};

}  // namespace

std::unique_ptr<Wire> make_nccl_wire(Group& group, const Options& options, int device) {
  return std::make_unique<NcclWire>(group, options, device);
}

}  // namespace sparsecast::perf

#else

namespace sparsecast::perf {

std::unique_ptr<Wire> make_nccl_wire(Group&, const Options&, int) {
  throw Error(ErrorCode::kUnsupported, "this build has no NCCL transport");
}

}  // namespace sparsecast::perf

#endif
