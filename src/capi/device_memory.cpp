// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <thread>

#include "capi/buffer.hpp"
#include "sparsecast/device.hpp"
#include "transport/nccl/device_api.hpp"

namespace sparsecast::capi {

#ifdef SPARSECAST_HAVE_NCCL

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

class DeviceBufferMemory final : public BufferMemory {
 public:
  DeviceBufferMemory(std::shared_ptr<const TensorTable> table, const std::vector<void*>& d_data, Communicator& comm)
      : table_(std::move(table)), d_data_(d_data), api_(*comm.device_api()) {
    options_.device = comm.nccl()->report().device;
    options_.deadline = milliseconds(comm.config().timeout_ms);
    api_.use_device(options_.device);
    for (std::size_t t = 0; t < table_->size(); ++t) {
      const std::uint64_t bytes = (*table_)[t].bytes();
      if (bytes != 0 && !api_.holds(d_data_[t], options_.device)) {
        throw Error(ErrorCode::kUsage,
                    fmt::format("tensor '{}' does not lie in memory of device {}", (*table_)[t].name, options_.device));
      }
    }
    ready_ = api_.create_event();
  }
  ~DeviceBufferMemory() override { api_.destroy_event(ready_); }
  DeviceBufferMemory(const DeviceBufferMemory&) = delete;
  DeviceBufferMemory& operator=(const DeviceBufferMemory&) = delete;

  std::unique_ptr<Publisher> make_publisher(std::uint64_t version) override {
    wait_until_ready();
    PublisherOptions publishing;
    publishing.version = version;
    DetectorOptions detecting;
    detecting.device = options_;
    return std::make_unique<Publisher>(
        table_, make_detector(table_, refs_to(*table_, d_data_, options_.device), std::move(detecting)), publishing);
  }
  std::unique_ptr<Subscriber> make_subscriber(std::uint64_t version) override {
    wait_until_ready();
    SubscriberOptions subscribing;
    subscribing.version = version;
    return std::make_unique<Subscriber>(table_, refs_to(*table_, d_data_, options_.device), subscribing, options_);
  }

  void begin_behind(CUstream_st* stream) override {
    api_.use_device(options_.device);
    api_.record(ready_, stream);
  }
  void send_all(Communicator& comm, Deadline deadline) override { broadcast_all(comm, comm.rank(), deadline); }
  void receive_all(Communicator& comm, int root, Deadline deadline) override { broadcast_all(comm, root, deadline); }

  SyncReport send_changes(Publisher& publisher, Communicator& comm, Deadline deadline) override {
    return sync_send(publisher, *comm.nccl(), time_left(deadline), static_cast<CUevent_st*>(ready_));
  }
  SyncReport receive_changes(Subscriber& subscriber, Communicator& comm, int root, Deadline deadline) override {
    ApplyOrder order;
    order.after = static_cast<CUevent_st*>(ready_);
    return sync_receive(subscriber, *comm.nccl(), root, time_left(deadline), order);
  }

 private:
  /// Broadcasts every tensor from where it lies to where it lies: all ranks have registered the same table.
  void broadcast_all(Communicator& comm, int root, Deadline deadline) {
    std::vector<FrameTransfer> transfers(table_->size());
    for (std::size_t t = 0; t < transfers.size(); ++t) {
      transfers[t].channel = comm.nccl();
      transfers[t].source = root;
      transfers[t].bytes = (*table_)[t].bytes();
      transfers[t].d_frames = static_cast<std::byte*>(d_data_[t]);
    }
    NcclTransport::broadcast_frames(transfers, deadline);
  }

  /// Reads that take all tensors at once do not wait for events, so the host waits here.
  void wait_until_ready() {
    const Deadline deadline = steady_clock::now() + options_.deadline;
    while (!api_.finished(ready_)) {
      if (steady_clock::now() >= deadline) {
        throw Error(ErrorCode::kTimeout, "what was on the stream before did not end by the deadline");
      }
      std::this_thread::sleep_for(microseconds(20));
    }
  }

  std::shared_ptr<const TensorTable> table_;
  std::vector<void*> d_data_;
  DeviceApi& api_;
  DeviceOptions options_;
  void* ready_ = nullptr;  ///< Event recorded on the caller's stream when the call began.
};

}  // namespace

std::unique_ptr<BufferMemory> make_device_memory(std::shared_ptr<const TensorTable> table,
                                                 const std::vector<void*>& d_data, Communicator& comm) {
  if (!device_backend_available()) {
    throw Error(ErrorCode::kUnsupported,
                "this build of the library broadcasts host memory only: it has no device backend");
  }
  if (comm.nccl() == nullptr) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("device memory needs the NCCL transport, this communicator uses {}", comm.transport_name()));
  }
  return std::make_unique<DeviceBufferMemory>(std::move(table), d_data, comm);
}

#else

std::unique_ptr<BufferMemory> make_device_memory(std::shared_ptr<const TensorTable>, const std::vector<void*>&,
                                                 Communicator&) {
  throw Error(ErrorCode::kUnsupported,
              "this build of the library broadcasts host memory only: device memory needs NCCL and a device backend");
}

#endif

}  // namespace sparsecast::capi
