// SPDX-License-Identifier: Apache-2.0

// Fuzzes messages between the ranks of a sharded stream: rank infos and votes. An accepted message is unchanged when
// packed and parsed again.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "sharded/rank_info.hpp"
#include "sparsecast/error.hpp"
#include "sync/vote.hpp"

namespace {

using namespace sparsecast;

void require(bool condition) {
  if (!condition) std::abort();
}

void rank_infos(ConstBytes bytes) {
  const Bytes packed = pack_roles(parse_roles(bytes, "rank 1"));
  require(pack_roles(parse_roles(packed, "rank 1")) == packed);
  const Bytes joined = join_roles({packed, packed, packed});
  for (const auto& roles : parse_joined_roles(joined, 3, "all ranks")) require(pack_roles(roles) == packed);
}

void joined_rank_infos(ConstBytes bytes) {
  std::vector<Bytes> packed;
  for (const auto& roles : parse_joined_roles(bytes, 64, "all ranks")) packed.push_back(pack_roles(roles));
  const auto parsed = parse_joined_roles(join_roles(packed), 64, "all ranks");
  for (std::size_t r = 0; r < parsed.size(); ++r) require(pack_roles(parsed[r]) == packed[r]);
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
    if ((data[0] & 1) == 0) {
      vote(bytes);
    } else if ((data[0] & 2) == 0) {
      rank_infos(bytes);
    } else {
      joined_rank_infos(bytes);
    }
  } catch (const Error&) {
  }
  return 0;
}
