// SPDX-License-Identifier: Apache-2.0

// The safetensors header parser on arbitrary bytes: it refuses with an Error, or what it returns is consistent, and
// written and read again it is the same.

#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "sparsecast/error.hpp"
#include "sparsecast/safetensors.hpp"

namespace {

using namespace sparsecast;

void require(bool condition) {
  if (!condition) std::abort();
}

void check_tiling(const SafetensorsHeader& header, std::uint64_t file_bytes) {
  std::uint64_t next = header.data_begin;
  for (const SafetensorsEntry& entry : header.entries) {
    require(entry.begin == next && entry.spec.bytes() <= file_bytes - next);
    next += entry.spec.bytes();
  }
  require(next == file_bytes);
}

void check_round_trip(const SafetensorsHeader& header, std::uint64_t file_bytes) {
  std::vector<TensorSpec> specs;
  for (const SafetensorsEntry& entry : header.entries) specs.push_back(entry.spec);
  const std::vector<std::byte> bytes = SafetensorsHeader::serialize(specs, header.metadata);
  const SafetensorsHeader again = SafetensorsHeader::parse(bytes, bytes.size() + (file_bytes - header.data_begin));
  require(again.metadata == header.metadata && again.entries.size() == specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) require(again.entries[i].spec == specs[i]);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  SafetensorsHeader header;
  try {
    header = SafetensorsHeader::parse(std::as_bytes(std::span(data, size)), size);
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kUnsupported);
    return 0;
  }
  check_tiling(header, size);
  check_round_trip(header, size);
  SparseStep::recognises(header);
  return 0;
}
