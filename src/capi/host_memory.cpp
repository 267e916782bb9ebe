// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "capi/buffer.hpp"

namespace sparsecast::capi {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// Size of the pieces in which dense bytes travel, so that no rank needs room for a second copy of the buffer.
constexpr std::uint64_t kPieceBytes = std::uint64_t{32} << 20;

class HostBufferMemory final : public BufferMemory {
 public:
  HostBufferMemory(std::shared_ptr<const TensorTable> table, const std::vector<void*>& data, int threads)
      : table_(std::move(table)), threads_(threads) {
    for (std::size_t t = 0; t < table_->size(); ++t) {
      live_.emplace_back(static_cast<std::byte*>(data[t]), static_cast<std::size_t>((*table_)[t].bytes()));
    }
  }

  std::unique_ptr<Publisher> make_publisher(std::uint64_t version) override {
    PublisherOptions options;
    options.version = version;
    options.encode.threads = threads_;
    return std::make_unique<Publisher>(table_, make_detector(table_, refs_to(*table_, live_)), options);
  }
  std::unique_ptr<Subscriber> make_subscriber(std::uint64_t version) override {
    SubscriberOptions options;
    options.version = version;
    options.threads = threads_;
    return std::make_unique<Subscriber>(table_, refs_to(*table_, live_), options);
  }

  void begin_behind(CUstream_st*) override {}
  void send_all(Communicator& comm, Deadline deadline) override {
    for_each_piece([&](std::span<std::byte> piece) {
      std::vector<Bytes> records = {Bytes(piece.begin(), piece.end())};
      comm.transport().broadcast(records, comm.rank(), deadline);
    });
  }
  void receive_all(Communicator& comm, int root, Deadline deadline) override {
    for_each_piece([&](std::span<std::byte> piece) {
      std::vector<Bytes> records;
      comm.transport().broadcast(records, root, deadline);
      if (records.size() != 1 || records[0].size() != piece.size()) {
        throw Error(ErrorCode::kCorrupt, fmt::format("rank {} sent other pieces of the buffer than belong here", root));
      }
      std::memcpy(piece.data(), records[0].data(), piece.size());
    });
  }

  SyncReport send_changes(Publisher& publisher, Communicator& comm, Deadline deadline) override {
    return sync_send(publisher, comm.transport(), time_left(deadline));
  }
  SyncReport receive_changes(Subscriber& subscriber, Communicator& comm, int root, Deadline deadline) override {
    return sync_receive(subscriber, comm.transport(), root, time_left(deadline));
  }

 private:
  template <class Body>
  void for_each_piece(const Body& body) const {
    for (const MutableBytes tensor : live_) {
      for (std::size_t at = 0; at < tensor.size(); at += kPieceBytes) {
        body(tensor.subspan(at, std::min<std::size_t>(kPieceBytes, tensor.size() - at)));
      }
    }
  }

  std::shared_ptr<const TensorTable> table_;
  std::vector<MutableBytes> live_;
  int threads_;
};

}  // namespace

std::unique_ptr<BufferMemory> make_host_memory(std::shared_ptr<const TensorTable> table, const std::vector<void*>& data,
                                               const scConfig_t& config) {
  return std::make_unique<HostBufferMemory>(std::move(table), data, config.threads);
}

milliseconds time_left(Deadline deadline) {
  return std::max(std::chrono::ceil<milliseconds>(deadline - steady_clock::now()), milliseconds(1));
}

}  // namespace sparsecast::capi
