#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsecast::bench {

/// Number of elements that differ between two arrays, found by a vectorised loop that does nothing else: the floor of
/// any detection by comparison.
std::uint64_t scan(const std::byte* current, const std::byte* base, std::uint64_t count, std::size_t element_bytes);

}  // namespace sparsecast::bench
