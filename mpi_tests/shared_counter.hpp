// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <new>
#include <thread>

namespace sparsecast::mpi_test {

/// A counter in memory that all ranks of a machine share, so that one that plays dead need not call MPI to see the
/// others finish. Made by all ranks together.
class SharedCounter {
 public:
  SharedCounter() {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Aint bytes = 0;
    int unit = 0;
    MPI_Win_allocate_shared(rank == 0 ? sizeof(Counter) : 0, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &counter_, &window_);
    MPI_Win_shared_query(window_, 0, &bytes, &unit, &counter_);
    if (rank == 0) new (counter_) Counter(0);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  SharedCounter(const SharedCounter&) = delete;
  SharedCounter& operator=(const SharedCounter&) = delete;

  void add_one() { counter_->fetch_add(1); }
  void wait_for(int count) const {
    while (counter_->load() < count) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

 private:
  using Counter = std::atomic<int>;
  static_assert(Counter::is_always_lock_free);

  Counter* counter_ = nullptr;
  MPI_Win window_ = MPI_WIN_NULL;
};

}  // namespace sparsecast::mpi_test
