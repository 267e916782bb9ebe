// SPDX-License-Identifier: Apache-2.0
#pragma once

// Safetensors files byte by byte, also such as no writer would write.

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "sparsecast/safetensors.hpp"

namespace sparsecast::test {

/// Length, this header text, this data: nothing is checked or padded.
inline std::vector<std::byte> safetensors_file(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::vector<std::byte> bytes(8 + header.size() + data.size());
  std::memcpy(bytes.data(), &length, 8);
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  if (!data.empty()) std::memcpy(bytes.data() + 8 + header.size(), data.data(), data.size());
  return bytes;
}

inline std::vector<std::byte> safetensors_file(const std::string& header, std::size_t data_bytes) {
  return safetensors_file(header, std::string(data_bytes, '\0'));
}

/// A well-formed file of these tensors with this data, one after the other.
inline std::vector<std::byte> safetensors_file(const std::vector<TensorSpec>& specs, const std::string& data,
                                               const std::map<std::string, std::string>& metadata = {}) {
  std::vector<std::byte> bytes = SafetensorsHeader::serialize(specs, metadata);
  const std::span<const std::byte> more = std::as_bytes(std::span(data));
  bytes.insert(bytes.end(), more.begin(), more.end());
  return bytes;
}

inline SafetensorsHeader parse_file(const std::vector<std::byte>& bytes) {
  return SafetensorsHeader::parse(bytes, bytes.size());
}

}  // namespace sparsecast::test
