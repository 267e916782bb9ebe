// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsecast::bench {

/// Counts the elements that differ between two arrays, in a vectorised loop that does nothing else: no detection by
/// comparison can be faster. `element_bytes` is 1, 2, 4 or 8.
std::uint64_t scan(const std::byte* current, const std::byte* base, std::uint64_t count, std::size_t element_bytes);

}  // namespace sparsecast::bench
