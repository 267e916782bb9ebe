// SPDX-License-Identifier: Apache-2.0

// Fuzzes messages between the ranks of a sharded stream: rank infos and votes. An accepted message is unchanged when
// packed and parsed again.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "sharded/rank_info.hpp"
#include "sharded/vote.hpp"
#include "sparsecast/error.hpp"

namespace {

using namespace sparsecast;

void require(bool condition) {
  if (!condition) std::abort();
}

void rank_infos(ConstBytes bytes) {
  const Bytes packed = pack_roles(parse_roles(bytes, "rank 1"));
  require(pack_roles(parse_roles(packed, "rank 1")) == packed);
}

void vote(ConstBytes bytes) {
  const Bytes packed = pack_vote(parse_vote(bytes, "rank 1"));
  require(pack_vote(parse_vote(packed, "rank 1")) == packed);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ConstBytes bytes = std::as_bytes(std::span(data + 1, size - 1));
  try {
    (data[0] & 1) != 0 ? rank_infos(bytes) : vote(bytes);
  } catch (const Error&) {
  }
  return 0;
}
