// SPDX-License-Identifier: Apache-2.0
#pragma once

// Sums of the state digest over elements that are contiguous in memory, and over changes.

#include <cstddef>
#include <cstdint>

#include "core/digest_common.hpp"

namespace sparsecast::cpu {

/// Adds the elements at `bits` to the digest `sum`, as many of them as fill whole vectors. Returns the number of added
/// elements; the caller adds the remaining ones. There are `count` elements of `element_bytes` bytes each, at any
/// alignment. The first element has the counter `counter` (digest_counter); the counter of each next element is larger
/// by `counter_step`.
std::uint64_t sum_elements(std::uint64_t counter, std::uint64_t counter_step, std::uint64_t key_hi,
                           const std::byte* bits, std::uint64_t count, std::size_t element_bytes, DigestSum& sum);

/// Maximum number of changes that one call to sum_changes takes.
inline constexpr std::uint32_t kMostSummedChanges = 512;

/// Adds changes of elements to the digest `sum`, as many of them as fill whole vectors. Returns the number of added
/// changes; the caller adds the remaining ones. There are `count` changes, at most kMostSummedChanges. Element i has
/// `element_bytes` bytes and the counter counters[i], and changes from its bits in `before` to its bits in `after`;
/// both arrays are aligned to the element size.
std::uint32_t sum_changes(const std::uint64_t* counters, std::uint64_t key_hi, const void* before, const void* after,
                          std::uint32_t count, std::size_t element_bytes, DigestSum& sum);

/// Does the same as sum_changes for elements whose counters are `counter` + offsets[i] * kDigestStep.
std::uint32_t sum_changes_at(std::uint64_t counter, const std::uint32_t* offsets, std::uint64_t key_hi,
                             const void* before, const void* after, std::uint32_t count, std::size_t element_bytes,
                             DigestSum& sum);

}  // namespace sparsecast::cpu
