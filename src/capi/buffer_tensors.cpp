// SPDX-License-Identifier: Apache-2.0
#include "capi/buffer_tensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "sync/frame_channel.hpp"
#include "transport/nccl/device_api.hpp"

namespace sparsecast::capi {
namespace {

using std::chrono::microseconds;
using std::chrono::steady_clock;

/// Size of the pieces in which dense bytes of the host are sent, so that no rank needs room for a second copy.
constexpr std::uint64_t kPieceBytes = std::uint64_t{32} << 20;

void broadcast_piece(MutableBytes piece, Communicator& comm, int root, Deadline deadline) {
  std::vector<Bytes> records;
  if (comm.rank() == root) records.emplace_back(piece.begin(), piece.end());
  comm.transport().broadcast(records, root, deadline);
  if (comm.rank() == root) return;
  if (records.size() != 1 || records[0].size() != piece.size()) {
    throw Error(ErrorCode::kCorrupt, fmt::format("rank {} sent other pieces of the buffer than belong here", root));
  }
  std::memcpy(piece.data(), records[0].data(), piece.size());
}

/// Returns the device of a communicator whose transport reaches device memory.
int device_of(Communicator& comm) {
  if (!device_backend_available()) {
    throw Error(ErrorCode::kUnsupported,
                "this build of the library broadcasts host memory only: it has no device backend");
  }
  if (comm.nccl() == nullptr) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("device memory needs the NCCL transport, this communicator uses {}", comm.transport_name()));
  }
  return comm.nccl()->report().device;
}

}  // namespace

BufferTensors::BufferTensors(const TensorTable& table, const std::vector<void*>& data, scMemory_t kind,
                             Communicator& comm) {
  if (kind == scMemoryHost) {
    refs_ = refs_to(table, data, kHostMemory);
    return;
  }
  device_.device = device_of(comm);
  device_.deadline = std::chrono::milliseconds(comm.config().timeout_ms);
  refs_ = refs_to(table, data, device_.device);
  api_ = comm.device_api();
  const DeviceApiGuard guard(*api_, device_.device);
  for (std::size_t t = 0; t < refs_.size(); ++t) {
    if (refs_[t].bytes() != 0 && !api_->holds(refs_[t].data, device_.device)) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("tensor '{}' does not lie in memory of device {}", table[t].name, device_.device));
    }
  }
  ready_ = api_->create_event();
}

BufferTensors::~BufferTensors() {
  if (ready_ != nullptr) release_on(*api_, device_.device, [this] { api_->destroy_event(ready_); });
}

void BufferTensors::begin_behind(CUstream_st* stream) {
  if (api_ == nullptr) return;
  const DeviceApiGuard guard(*api_, device_.device);
  api_->record(ready_, stream);
}

void BufferTensors::wait_until_ready() const {
  if (api_ == nullptr) return;
  const DeviceApiGuard guard(*api_, device_.device);
  const Deadline deadline = steady_clock::now() + device_.deadline;
  while (!api_->finished(ready_)) {
    if (steady_clock::now() >= deadline) {
      throw Error(ErrorCode::kTimeout, "what was on the stream before did not end by the deadline");
    }
    std::this_thread::sleep_for(microseconds(20));
  }
}

void BufferTensors::broadcast_all(Communicator& comm, int root, Deadline deadline) const {
  if (api_ != nullptr) {
    // Each tensor goes from its memory on the root to its memory on the other ranks: all have registered the same
    // table.
    std::vector<FrameTransfer> transfers(refs_.size());
    for (std::size_t t = 0; t < transfers.size(); ++t) {
      transfers[t].channel = comm.nccl()->frames();
      transfers[t].source = root;
      transfers[t].bytes = refs_[t].bytes();
      transfers[t].d_frames = refs_[t].data;
    }
    broadcast_frames(transfers, deadline);
    return;
  }
  for (const TensorRef& tensor : refs_) {
    for (std::uint64_t at = 0; at < tensor.bytes(); at += kPieceBytes) {
      broadcast_piece({tensor.data + at, std::min(kPieceBytes, tensor.bytes() - at)}, comm, root, deadline);
    }
  }
}

}  // namespace sparsecast::capi
