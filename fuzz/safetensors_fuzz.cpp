// The safetensors header parser on arbitrary bytes: it refuses with an Error, or what it returns is consistent.

#include <cstdint>
#include <cstdlib>
#include <span>

#include "sparsecast/error.hpp"
#include "sparsecast/safetensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sparsecast;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  try {
    const SafetensorsHeader header = SafetensorsHeader::parse(bytes, size);
    std::uint64_t next = header.data_begin;
    for (const SafetensorsEntry& entry : header.entries) {
      if (entry.begin != next || entry.spec.bytes() > size - next) std::abort();
      next += entry.spec.bytes();
    }
    if (next != size) std::abort();
    SparseStep::recognises(header);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt && error.code() != ErrorCode::kUnsupported) std::abort();
  }
  return 0;
}
