#include "store/parallel_for.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace sparsecast {

void parallel_for(std::uint64_t count, int threads, const std::function<void(std::uint64_t)>& body) {
  std::atomic<std::uint64_t> next{0};
  std::mutex mutex;
  std::exception_ptr first;
  const auto work = [&] {
    for (std::uint64_t i = next++; i < count; i = next++) {
      try {
        body(i);
      } catch (...) {
        next = count;
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    }
  };
  std::vector<std::jthread> helpers;
  const std::uint64_t wanted = std::min<std::uint64_t>(count, static_cast<std::uint64_t>(threads));
  helpers.reserve(wanted);
  try {
    while (helpers.size() + 1 < wanted) helpers.emplace_back(work);
  } catch (const std::system_error&) {
    // Fewer threads than wished do the same work.
  }
  work();
  helpers.clear();
  if (first) std::rethrow_exception(first);
}

}  // namespace sparsecast
