// SPDX-License-Identifier: Apache-2.0
#include "nccl_dropin/emulated/group.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "cuda_emulation/runtime.hpp"
#include "nccl_dropin/emulated/device_nccl.hpp"

namespace sparsecast::test {

Buffer::Buffer(Memory memory, const Bytes& bytes) : memory_(memory), size_(bytes.size()) {
  if (memory == Memory::kHost) {
    at_ = dropin::host_api().allocate(size_);
    std::memcpy(at_, bytes.data(), size_);
  } else {
    EXPECT_EQ(cudaMalloc(&at_, size_), cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(at_, bytes.data(), size_, cudaMemcpyHostToDevice, nullptr), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  }
}

Buffer::~Buffer() {
  if (memory_ == Memory::kHost) {
    dropin::host_api().free(at_);
  } else {
    EXPECT_EQ(cudaFree(at_), cudaSuccess);
  }
}

Bytes Buffer::bytes() const {
  Bytes found(size_);
  if (memory_ == Memory::kHost) {
    std::memcpy(found.data(), at_, size_);
  } else {
    EXPECT_EQ(cudaMemcpyAsync(found.data(), at_, size_, cudaMemcpyDeviceToHost, nullptr), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  }
  return found;
}

Rank::Rank(Memory where, const ncclUniqueId& id, int number, int size) : memory(where), rank(number) {
  EXPECT_EQ(cudaSetDevice(rank % 2), cudaSuccess);
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  if (memory == Memory::kDevice) {
    emulation::defer_copies(true);  // A copy that is ordered wrongly has wrong bytes.
    if (rank != 1) {
      EXPECT_EQ(ncclCommInitRank(&comm_, size, id, rank), ncclSuccess);
    } else {
      ncclConfig_t config = nonblocking_config(0);
      EXPECT_EQ(ncclCommInitRankConfig(&comm_, size, id, rank, &config), ncclInProgress);
      EXPECT_EQ(kept_error(), ncclSuccess);
    }
    return;
  }
  const dropin::RealLibrary& real = dropin::real_library();
  EXPECT_EQ(real.comm_init_rank(&comm_, size, id, rank), ncclSuccess);
  dropin::Meeting meeting = dropin::meet(id, rank, size, dropin::settings());
  EXPECT_EQ(meeting.why_dense, "");
  on_host_ = std::make_unique<dropin::SparseCommunicator>(real.functions, comm_, std::move(meeting), dropin::host_api(),
                                                          kHostMemory, dropin::settings().timeout);
}

Rank::~Rank() {
  if (on_host_) {
    on_host_->leave(false);
    on_host_.reset();
    dropin::real_library().functions.comm_destroy(comm_);
  } else {
    EXPECT_EQ(ncclCommDestroy(comm_), ncclSuccess);
  }
  emulation::defer_copies(false);
  EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
}

ncclResult_t Rank::broadcast(const void* from, void* to, std::size_t bytes) {
  emulation::be_busy(busy);
  const ncclResult_t result = on_host_ ? on_host_->broadcast(from, to, {bytes, ncclInt8, 0}, stream_)
                                       : ncclBroadcast(from, to, bytes, ncclInt8, 0, comm_, stream_);
  emulation::be_busy(0);
  return result;
}

ncclResult_t Rank::broadcast(const Bytes& bytes) {
  const Buffer buffer(memory, rank == 0 ? bytes : Bytes(bytes.size()));
  const ncclResult_t result = broadcast(buffer.at(), buffer.at(), bytes.size());
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_TRUE((result != ncclSuccess && result != ncclInProgress) || buffer.bytes() == bytes) << "rank " << rank;
  return result;
}

ncclResult_t Rank::kept_error() {
  if (on_host_) return on_host_->failure();
  ncclResult_t error = ncclSuccess;
  do {
    EXPECT_EQ(ncclCommGetAsyncError(comm_, &error), ncclSuccess);
  } while (error == ncclInProgress);
  return error;
}

Counted run_ranks(Memory memory, int size, const std::function<void(Rank&)>& body) {
  const dropin::Statistics& now = dropin::statistics();
  const Counted before{now.broadcasts, now.sparse, now.dense_bytes, now.sent_bytes};
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const emulation::HeldMemory held = emulation::held_memory();
      {
        Rank self(memory, id, rank, size);
        body(self);
      }
      EXPECT_EQ(emulation::held_memory().device, held.device) << "rank " << rank;
      EXPECT_EQ(emulation::held_memory().pinned, held.pinned) << "rank " << rank;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return {now.broadcasts - before.broadcasts, now.sparse - before.sparse, now.dense_bytes - before.dense_bytes,
          now.sent_bytes - before.sent_bytes};
}

}  // namespace sparsecast::test
