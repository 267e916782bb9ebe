// SPDX-License-Identifier: Apache-2.0
#pragma once

// Sums of the state digest over elements that follow one another in memory, and over changes.

#include <cstddef>
#include <cstdint>

#include "core/digest_common.hpp"

namespace sparsecast::cpu {

/// Adds the digest of the first elements of `element_bytes` bytes at `bits`, at any alignment, at most `count` of them,
/// and returns how many; the last few are left. The first has the counter `counter`, each other one that is larger by
/// `counter_step`.
std::uint64_t sum_elements(std::uint64_t counter, std::uint64_t counter_step, std::uint64_t key_hi,
                           const std::byte* bits, std::uint64_t count, std::size_t element_bytes, DigestSum& sum);

/// Most changes of one call to sum_changes.
inline constexpr std::uint32_t kMostSummedChanges = 512;

/// Adds the change of the digest when elements of `element_bytes` bytes, which have these counters, change from the
/// bits in `before` to those in `after`, both aligned. Takes the first of at most kMostSummedChanges of them, and
/// returns how many; the last few are left.
std::uint32_t sum_changes(const std::uint64_t* counters, std::uint64_t key_hi, const void* before, const void* after,
                          std::uint32_t count, std::size_t element_bytes, DigestSum& sum);

/// The same for elements whose counters are counter + offsets[i] * kDigestStep.
std::uint32_t sum_changes_at(std::uint64_t counter, const std::uint32_t* offsets, std::uint64_t key_hi,
                             const void* before, const void* after, std::uint32_t count, std::size_t element_bytes,
                             DigestSum& sum);

}  // namespace sparsecast::cpu
