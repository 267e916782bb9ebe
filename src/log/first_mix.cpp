// SPDX-License-Identifier: Apache-2.0
#include "log/first_mix.hpp"

#include <array>

#include "codec/record_layout.hpp"
#include "log/log_keys.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

void require_second_mix(const DeltaHeader& header, const std::string& name) {
  if (header.digest_mix == DigestMix::kSecond) return;
  throw Error(
      ErrorCode::kUnsupported,
      "its digests have the first mix, that of the formats 1.0 and 1.1, and those of a log have the second: apply "
      "such deltas as files, and begin a new log with the weights that they lead to",
      name);
}

void require_second_mix(ObjectStore& store, const LogCommit& newest) {
  if (newest.kind == CommitKind::kGenesis) return;
  const std::string key = delta_key(DeltaRef{newest.version - 1, newest.version, newest.delta, newest.delta_bytes});
  std::array<std::byte, layout::kHeaderBytes> record{};
  DeltaHeader header;
  try {
    store.get_range(key, 0, record);
    header = parse_header(record);
  } catch (const Error& error) {
    if (is_of_the_store(error)) throw;
    return;
  }
  require_second_mix(header, store.location());
}

}  // namespace sparsecast
