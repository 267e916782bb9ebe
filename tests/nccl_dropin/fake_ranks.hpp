// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the two fake NCCLs of these tests have in common: how ranks find their world by a unique id, and wait.

#include <nccl.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>

namespace sparsecast::test {

/// Returns the id of a world: its number, then zeros, as NCCL leaves the end of its ids.
inline ncclUniqueId id_of(std::uint64_t world) {
  ncclUniqueId id{};
  std::memcpy(id.internal, &world, sizeof world);
  return id;
}

/// Returns the number of the world that an id was made for.
inline std::uint64_t world_of(const ncclUniqueId& id) {
  std::uint64_t world = 0;
  std::memcpy(&world, id.internal, sizeof world);
  return world;
}

/// Waits until done() is true; returns false if it is not within 30 seconds.
template <class Done>
bool wait_until(const Done& done) {
  constexpr std::chrono::seconds kLongest{30};
  const auto end = std::chrono::steady_clock::now() + kLongest;
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

}  // namespace sparsecast::test
