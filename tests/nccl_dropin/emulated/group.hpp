// SPDX-License-Identifier: Apache-2.0
#pragma once

// Ranks that broadcast by the drop-in, each a thread.

#include <functional>
#include <memory>

#include "nccl_dropin/sparse_communicator.hpp"
#include "sparsecast/delta.hpp"

namespace sparsecast::test {

/// Where buffers and slots lie. On a device the ranks call the functions that the drop-in exports, elsewhere the
/// drop-in's communicator, which the exported functions would make on a machine without devices.
enum class Memory { kDevice, kHost };

/// Bytes where broadcasts read and write them.
class Buffer {
 public:
  Buffer(Memory memory, const Bytes& bytes);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* at() const { return at_; }
  Bytes bytes() const;

 private:
  Memory memory_;
  std::size_t size_;
  void* at_ = nullptr;
};

/// A rank of a communicator, on device `rank % 2`. On a device, rank 1 has a communicator that does not block.
class Rank {
 public:
  Rank(Memory memory, const ncclUniqueId& id, int rank, int size);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  const Memory memory;
  const int rank;
  ncclResult_t broadcast(const void* from, void* to, std::size_t bytes);
  /// Broadcasts `bytes` in place from rank 0; on a receiver the buffer holds something else before. Adds a failure to
  /// the test if the call succeeds with other bytes.
  ncclResult_t broadcast(const Bytes& bytes);
  /// Returns the error that the communicator has kept.
  ncclResult_t kept_error();
  cudaStream_t stream() const { return stream_; }
  /// So often in each broadcast the device says first that it has not finished.
  int busy = 3;

 private:
  cudaStream_t stream_ = nullptr;
  ncclComm_t comm_ = nullptr;
  std::unique_ptr<dropin::SparseCommunicator> on_host_;
};

/// The drop-in's counters, summed over all ranks.
struct Counted {
  std::uint64_t broadcasts = 0;
  std::uint64_t sparse = 0;
  std::uint64_t dense_bytes = 0;
  std::uint64_t sent_bytes = 0;
};

/// Runs `body` on each rank of a new communicator, and ends that. Adds a failure to the test when a rank has not freed
/// its memory then. Returns what the drop-in has counted.
Counted run_ranks(Memory memory, int size, const std::function<void(Rank&)>& body);

}  // namespace sparsecast::test
