// SPDX-License-Identifier: Apache-2.0

// Fuzzes the head of the frames that travel between devices. An accepted head is unchanged when packed again, and its
// frames lie in the announced range, apart from one another.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "sparsecast/error.hpp"
#include "sync/frame_head.hpp"

namespace {

using namespace sparsecast;

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // The range is announced beside the head.
  std::uint64_t announced = 0;
  if (size < sizeof(announced)) return 0;
  std::memcpy(&announced, data, sizeof(announced));
  const ConstBytes bytes = std::as_bytes(std::span(data, size)).subspan(sizeof(announced));
  try {
    const FrameHead head = parse_frame_head(bytes, announced);
    const Bytes packed = head.pack();
    require(packed.size() == bytes.size() && std::memcmp(packed.data(), bytes.data(), packed.size()) == 0);
    std::uint64_t end = 0;
    for (const StreamHead& stream : head.streams) {
      require(stream.offsets.size() == stream.sizes.size());
      for (std::size_t f = 0; f < stream.sizes.size(); ++f) {
        require(stream.offsets[f] >= end && stream.offsets[f] % kFrameAlignment == 0);
        end = stream.offsets[f] + stream.sizes[f];
      }
    }
    require(end == announced);
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kCorrupt);
  }
  return 0;
}
