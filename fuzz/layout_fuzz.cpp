// SPDX-License-Identifier: Apache-2.0

// Layouts that peers send and files that describe them, on arbitrary bytes: refused with an Error, or a layout that
// comes back equal from each of its forms.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "layout/layout_bytes.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/layout.hpp"

namespace {

using namespace sparsecast;

constexpr std::size_t kMostShards = 10000;

void require(bool condition) {
  if (!condition) std::abort();
}

bool known(ErrorCode code) { return code == ErrorCode::kCorrupt || code == ErrorCode::kUnsupported; }

/// Every form of a layout that was taken.
void come_back(const Layout& layout) {
  const Bytes bytes = layout.serialize();
  require(Layout::parse(bytes).hash() == layout.hash());
  require(parse_layout_json(layout_to_json(layout), "again").hash() == layout.hash());
}

void serialized(ConstBytes input) {
  try {
    come_back(Layout::parse(input));
  } catch (const Error& error) {
    require(known(error.code()));
  }
}

/// Behind the checksum and the compression.
void content(ConstBytes input) {
  try {
    const Layout layout = unpack_layout(input);
    const Bytes packed = pack_layout(layout);
    require(std::equal(packed.begin(), packed.end(), input.begin(), input.end()));
    come_back(layout);
  } catch (const Error& error) {
    require(known(error.code()));
  }
}

void json(ConstBytes input, std::uint64_t scale_down) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  try {
    come_back(parse_layout_json(text, "input", {.scale_down = scale_down, .max_shards = kMostShards}));
  } catch (const Error& error) {
    require(known(error.code()) || (error.code() == ErrorCode::kUsage && scale_down != 1));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto input = std::as_bytes(std::span(data, size)).subspan(1);
  switch (data[0] % 4) {
    case 0:
      serialized(input);
      break;
    case 1:
      content(input);
      break;
    case 2:
      json(input, 1);
      break;
    default:
      json(input, 2);
  }
  return 0;
}
