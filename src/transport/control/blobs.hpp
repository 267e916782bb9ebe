#pragma once

// How values and parts of several ranks lie in the body of a message.

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
  Value value;
  if (body.size() != sizeof(Value)) {
    throw Error(ErrorCode::kCorrupt, fmt::format("sent {} bytes where {} belong", body.size(), sizeof(Value)), peer);
  }
  std::memcpy(&value, body.data(), sizeof(Value));
  return value;
}
/// Every part's size, then every part.
Bytes join_blobs(const std::vector<Bytes>& blobs);
/// The parts of `size` ranks. Throws Error{kCorrupt} that names the peer when the sizes do not add up.
std::vector<Bytes> cut_blobs(std::span<const std::byte> joined, int size, const std::string& peer);

}  // namespace sparsecast
