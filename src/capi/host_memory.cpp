// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "capi/buffer.hpp"

namespace sparsecast::capi {
namespace {

/// Size of the pieces in which dense bytes travel, so that no rank needs room for a second copy of the buffer.
constexpr std::uint64_t kPieceBytes = std::uint64_t{32} << 20;

class HostBufferMemory final : public BufferMemory {
 public:
  HostBufferMemory(std::shared_ptr<const TensorTable> table, std::vector<TensorRef> tensors)
      : BufferMemory(std::move(table), std::move(tensors), {}) {}

  void begin_behind(CUstream_st*) override {}
  void wait_until_ready() override {}
  CUevent_st* ready() const noexcept override { return nullptr; }

  void broadcast_all(Communicator& comm, int root, Deadline deadline) override {
    for (const TensorRef& tensor : tensors()) {
      for (std::uint64_t at = 0; at < tensor.bytes(); at += kPieceBytes) {
        broadcast({tensor.data + at, std::min(kPieceBytes, tensor.bytes() - at)}, comm, root, deadline);
      }
    }
  }

 private:
  static void broadcast(MutableBytes piece, Communicator& comm, int root, Deadline deadline) {
    std::vector<Bytes> records;
    if (comm.rank() == root) records.emplace_back(piece.begin(), piece.end());
    comm.transport().broadcast(records, root, deadline);
    if (comm.rank() == root) return;
    if (records.size() != 1 || records[0].size() != piece.size()) {
      throw Error(ErrorCode::kCorrupt, fmt::format("rank {} sent other pieces of the buffer than belong here", root));
    }
    std::memcpy(piece.data(), records[0].data(), piece.size());
  }
};

}  // namespace

std::unique_ptr<BufferMemory> make_host_memory(std::shared_ptr<const TensorTable> table,
                                               const std::vector<void*>& data) {
  std::vector<TensorRef> tensors = refs_to(*table, data, kHostMemory);
  return std::make_unique<HostBufferMemory>(std::move(table), std::move(tensors));
}

}  // namespace sparsecast::capi
