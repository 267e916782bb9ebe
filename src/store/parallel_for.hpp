#pragma once

#include <cstdint>
#include <functional>

namespace sparsecast {

/// Calls body(0) to body(count - 1) on up to `threads` threads, the caller's among them. After the first exception no
/// further call begins; it is thrown when all threads have ended.
void parallel_for(std::uint64_t count, int threads, const std::function<void(std::uint64_t)>& body);

}  // namespace sparsecast
