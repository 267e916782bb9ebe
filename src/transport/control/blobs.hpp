// SPDX-License-Identifier: Apache-2.0
#pragma once

// Layouts of the values and blobs of several ranks in the body of a message.

#include <fmt/format.h>

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "sparsecast/delta.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

template <class Value>
std::span<const std::byte> bytes_of(const Value& value) {
  return std::as_bytes(std::span(&value, 1));
}

template <class Value>
Value value_of(const Bytes& body, const std::string& peer) {
  Value value{};
  if (body.size() != sizeof(Value)) {
    throw Error(ErrorCode::kCorrupt, fmt::format("sent {} bytes where {} belong", body.size(), sizeof(Value)), peer);
  }
  std::memcpy(&value, body.data(), sizeof(Value));
  return value;
}

/// Returns the blobs joined in their order, without their sizes; whoever reads the result must know the size of each
/// blob. Can be the combining function of ControlChannel::reduce.
inline Bytes concatenate(const std::vector<Bytes>& blobs) {
  Bytes joined;
  for (const Bytes& blob : blobs) joined.insert(joined.end(), blob.begin(), blob.end());
  return joined;
}

/// Returns the blobs of all ranks joined in their order. Each blob must be one Value or empty. Throws Error{kCorrupt}
/// that names the rank of any other blob.
template <class Value>
Bytes join_values(const std::vector<Bytes>& blobs) {
  for (std::size_t r = 0; r < blobs.size(); ++r) {
    if (!blobs[r].empty()) value_of<Value>(blobs[r], fmt::format("rank {}", r));
  }
  return concatenate(blobs);
}

/// Returns the `count` values in a message that join_values() has made. Throws Error{kCorrupt} when the message has
/// another size.
template <class Value>
std::vector<Value> values_of(const Bytes& joined, std::size_t count) {
  std::vector<Value> values(count);
  if (joined.size() != count * sizeof(Value)) {
    throw Error(ErrorCode::kCorrupt, fmt::format("the ranks sent {} bytes where {} values of {} belong", joined.size(),
                                                 count, sizeof(Value)));
  }
  if (count > 0) std::memcpy(values.data(), joined.data(), joined.size());
  return values;
}

/// Returns the sizes of all blobs (8 bytes each, little-endian on the machines supported), followed by the blobs.
inline Bytes join_blobs(const std::vector<Bytes>& blobs) {
  Bytes joined;
  for (const Bytes& blob : blobs) {
    const std::uint64_t size = blob.size();
    joined.insert(joined.end(), bytes_of(size).begin(), bytes_of(size).end());
  }
  const Bytes bodies = concatenate(blobs);
  joined.insert(joined.end(), bodies.begin(), bodies.end());
  return joined;
}

/// Returns the blobs of `size` ranks in a message that join_blobs() has made. Throws Error{kCorrupt} that names `peer`,
/// the sender, when the sizes do not add up to the length of the message.
inline std::vector<Bytes> cut_blobs(std::span<const std::byte> joined, int size, const std::string& peer) {
  const std::size_t ranks = static_cast<std::size_t>(size);
  const Error wrong(ErrorCode::kCorrupt, "sent parts whose sizes do not add up", peer);
  if (joined.size() < ranks * sizeof(std::uint64_t)) throw wrong;
  std::span<const std::byte> left = joined.subspan(ranks * sizeof(std::uint64_t));
  std::vector<Bytes> blobs;
  for (std::size_t r = 0; r < ranks; ++r) {
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, joined.data() + r * sizeof(bytes), sizeof(bytes));
    if (bytes > left.size()) throw wrong;
    blobs.emplace_back(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(bytes));
    left = left.subspan(static_cast<std::size_t>(bytes));
  }
  if (!left.empty()) throw wrong;
  return blobs;
}

}  // namespace sparsecast
