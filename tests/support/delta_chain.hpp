// SPDX-License-Identifier: Apache-2.0
#pragma once

// Deltas that follow one another, to join and to invert, with the tensors that they start from.

#include "support/random_delta.hpp"

namespace sparsecast::test {

/// States 0 .. n of one table, and the delta files between them.
struct DeltaChain {
  std::shared_ptr<const TensorTable> table;
  std::vector<TensorState> states;
  std::vector<Bytes> deltas;
  EncodeOptions options;
};

/// `values` of the deltas; now and then a tensor goes back to what it was, so that changes cancel.
DeltaChain random_chain(Random& random, ValueCodec values, std::size_t steps, const RandomLimits& limits);

/// The files that compose() and invert() write, with `base` as the tensors that (the first of) the deltas start from.
Bytes composed(const Bytes& first, const Bytes& second, const EncodeOptions& options, const TensorState& base);
Bytes inverted(const Bytes& delta, const EncodeOptions& options, const TensorState& base);
/// Joins the deltas [begin, end) in a random association.
Bytes fold(const DeltaChain& chain, std::size_t begin, std::size_t end, Random& random);

/// Applies `delta` to a copy of `base`, which it returns. Throws RoundTripFailure unless the digest is that of its
/// bytes.
TensorState applied(const DeltaChain& chain, const TensorState& base, const Bytes& delta);

/// Throws RoundTripFailure unless the deltas joined do what they do in turn, and an inverse restores the base: for xor
/// and ulp also byte for byte what is encoded directly, and the inverse of an inverse the delta itself.
void check_group_laws(const DeltaChain& chain, Random& random);

}  // namespace sparsecast::test
