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
using std::chrono::steady_clock;

class DeviceBufferMemory final : public BufferMemory {
 public:
  DeviceBufferMemory(std::shared_ptr<const TensorTable> table, std::vector<TensorRef> tensors,
                     const DeviceOptions& options, DeviceApi& api)
      : BufferMemory(std::move(table), std::move(tensors), options), api_(api) {
    api_.use_device(options.device);
    for (std::size_t t = 0; t < this->tensors().size(); ++t) {
      const TensorRef& tensor = this->tensors()[t];
      if (tensor.bytes() != 0 && !api_.holds(tensor.data, options.device)) {
        throw Error(ErrorCode::kUsage, fmt::format("tensor '{}' does not lie in memory of device {}",
                                                   (*this->table())[t].name, options.device));
      }
    }
    ready_ = api_.create_event();
  }
  ~DeviceBufferMemory() override { api_.destroy_event(ready_); }
  DeviceBufferMemory(const DeviceBufferMemory&) = delete;
  DeviceBufferMemory& operator=(const DeviceBufferMemory&) = delete;

  void begin_behind(CUstream_st* stream) override {
    api_.use_device(device().device);
    api_.record(ready_, stream);
  }

  void wait_until_ready() override {
    const Deadline deadline = steady_clock::now() + device().deadline;
    while (!api_.finished(ready_)) {
      if (steady_clock::now() >= deadline) {
        throw Error(ErrorCode::kTimeout, "what was on the stream before did not end by the deadline");
      }
      std::this_thread::sleep_for(microseconds(20));
    }
  }
  CUevent_st* ready() const noexcept override { return static_cast<CUevent_st*>(ready_); }

  /// From where each tensor lies to where it lies: all ranks have registered the same table.
  void broadcast_all(Communicator& comm, int root, Deadline deadline) override {
    std::vector<FrameTransfer> transfers(tensors().size());
    for (std::size_t t = 0; t < transfers.size(); ++t) {
      transfers[t].channel = comm.nccl();
      transfers[t].source = root;
      transfers[t].bytes = tensors()[t].bytes();
      transfers[t].d_frames = tensors()[t].data;
    }
    NcclTransport::broadcast_frames(transfers, deadline);
  }

 private:
  DeviceApi& api_;
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
  DeviceOptions options;
  options.device = comm.nccl()->report().device;
  options.deadline = std::chrono::milliseconds(comm.config().timeout_ms);
  std::vector<TensorRef> tensors = refs_to(*table, d_data, options.device);
  return std::make_unique<DeviceBufferMemory>(std::move(table), std::move(tensors), options, *comm.device_api());
}

#else

std::unique_ptr<BufferMemory> make_device_memory(std::shared_ptr<const TensorTable>, const std::vector<void*>&,
                                                 Communicator&) {
  throw Error(ErrorCode::kUnsupported,
              "this build of the library broadcasts host memory only: device memory needs NCCL and a device backend");
}

#endif

}  // namespace sparsecast::capi
