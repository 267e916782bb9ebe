// SPDX-License-Identifier: Apache-2.0
#pragma once

// Texts of the findings of races.hpp and orders.hpp. A test that ends with a finding fails.

#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace sparsecast::emulation {

/// Suspends the checks of this thread during its lifetime.
class Unwatched {
 public:
  Unwatched();
  ~Unwatched();
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;

 private:
  bool before_;
};
bool is_watched();

std::uint32_t offset_in_program(const void* place);
/// Returns "FILE:LINE" of such an offset, from the innermost inlined function outwards.
std::string source_of(std::uint32_t place);

/// Two places of the program that access the same memory.
struct Places {
  std::uint32_t before = 0;
  std::uint32_t now = 0;
  auto operator<=>(const Places&) const = default;
};
/// Keeps a report, once for the same places.
void report(const Places& places, const std::function<std::string()>& words);

/// Returns the findings since the last call.
std::vector<std::string> take_reports();

}  // namespace sparsecast::emulation
