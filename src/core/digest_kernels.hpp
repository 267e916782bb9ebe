// SPDX-License-Identifier: Apache-2.0
#pragma once

// Sums of the state digest over elements that are contiguous in memory, and over changes.

#include <cstddef>
#include <cstdint>

#include "core/digest_common.hpp"

namespace sparsecast::cpu {

/// Adds elements to a digest: the first of the `count` elements of `element_bytes` bytes that lie at `bits`, at any
/// alignment. Returns the number of elements that were added; the caller adds the last few. The first element has the
/// counter `counter`; each next one is larger by `counter_step`.
std::uint64_t sum_elements(std::uint64_t counter, std::uint64_t counter_step, std::uint64_t key_hi,
                           const std::byte* bits, std::uint64_t count, std::size_t element_bytes, DigestSum& sum);

/// Maximum number of changes that one call to sum_changes takes.
inline constexpr std::uint32_t kMostSummedChanges = 512;

/// Adds to a digest the first of `count` changes of elements of `element_bytes` bytes. Element i has the counter
/// counters[i], and changes from the bits in `before` to those in `after`, both aligned. `count` is at most
/// kMostSummedChanges. Returns the number of changes that were added; the caller adds the last few.
std::uint32_t sum_changes(const std::uint64_t* counters, std::uint64_t key_hi, const void* before, const void* after,
                          std::uint32_t count, std::size_t element_bytes, DigestSum& sum);

/// Does the same as sum_changes for elements whose counters are `counter` + offsets[i] * kDigestStep.
std::uint32_t sum_changes_at(std::uint64_t counter, const std::uint32_t* offsets, std::uint64_t key_hi,
                             const void* before, const void* after, std::uint32_t count, std::size_t element_bytes,
                             DigestSum& sum);

}  // namespace sparsecast::cpu
