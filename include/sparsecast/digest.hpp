// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sparsecast/export.hpp"
#include "sparsecast/hash.hpp"
#include "sparsecast/tensor_ref.hpp"
#include "sparsecast/tensor_table.hpp"

namespace sparsecast {

/// State digest: the sum over elements of mix(tensor, canonical index, bits), modulo 2^128.
/// Because it is a sum, both ends update it in time proportional to what changed, and the parts of
/// shards that tile a tensor add up to the digest of the whole. The mix and its collision bound
/// (at most 2^-63 for one wrong comparison) are in docs/wire-format.md, "State digest".
/// It protects against faults, not against an adversary who chooses the weights.
struct StateDigest {
  Hash128 value;

  StateDigest& operator+=(const StateDigest& other) noexcept {
    const std::uint64_t lo = value.lo + other.value.lo;
    value.hi += other.value.hi + (lo < value.lo ? 1U : 0U);
    value.lo = lo;
    return *this;
  }
  StateDigest& operator-=(const StateDigest& other) noexcept {
    const std::uint64_t borrow = value.lo < other.value.lo ? 1U : 0U;
    value.lo -= other.value.lo;
    value.hi -= other.value.hi + borrow;
    return *this;
  }
  friend bool operator==(const StateDigest&, const StateDigest&) = default;
};

/// Returns the part of the digest that elements [first, first + count) of a tensor contribute. `bits` holds exactly
/// these elements; `count` is bits.size() / element_size(dtype).
SPARSECAST_API StateDigest digest_span(const Hash128& key, DType dtype, std::uint64_t first,
                                       std::span<const std::byte> bits);

/// Returns the digest of each host tensor of a table, read in full, on `threads` threads (0: all cores);
/// TensorTable::digest_origin gives the index at which each element counts. Throws Error{kUsage} for tensors that do
/// not fit the table.
SPARSECAST_API std::vector<StateDigest> digest_tensors(const TensorTable& table, const std::vector<TensorRef>& tensors,
                                                       int threads = 1);

/// Returns the sum of parts.
SPARSECAST_API StateDigest sum(std::span<const StateDigest> parts) noexcept;

}  // namespace sparsecast
