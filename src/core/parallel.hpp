// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace sparsecast {

/// Returns the number of threads that an option asks for: `threads`, or for 0 the number of cores.
inline int resolve_threads(int threads) {
  return threads > 0 ? threads : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

/// Runs body(worker, item) for every item in [0, items) on at most `threads` threads (0: the number of cores), one of
/// which is the calling thread. Items are assigned in order. `worker` is the number of the thread, from 0. After the
/// first exception no more items are assigned; the exception is rethrown when all threads have ended.
template <class Body>
void parallel_for(int threads, std::size_t items, const Body& body) {
  const std::size_t workers = std::min<std::size_t>(static_cast<std::size_t>(resolve_threads(threads)), items);
  if (workers <= 1) {
    for (std::size_t item = 0; item < items; ++item) body(std::size_t{0}, item);
    return;
  }
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work = [&](std::size_t worker) {
    try {
      for (std::size_t item = next++; item < items; item = next++) body(worker, item);
    } catch (...) {
      next = items;
      const std::lock_guard<std::mutex> lock(failure_mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::jthread> pool;
  try {
    for (std::size_t worker = 1; worker < workers; ++worker) pool.emplace_back(work, worker);
  } catch (const std::system_error&) {
    // When a thread cannot be started, the others do the work.
  }
  work(0);
  pool.clear();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace sparsecast
