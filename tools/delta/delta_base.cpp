// SPDX-License-Identifier: Apache-2.0
#include "tools/delta/delta_base.hpp"

#include <fmt/format.h>

#include "checkpoint/checkpoint_apply.hpp"
#include "checkpoint/checkpoint_store.hpp"
#include "checkpoint/table_difference.hpp"

namespace sparsecast::tools {

void require_base(const StateDigest& digest, const std::string& path, const DeltaFile& delta) {
  if (digest == delta.header().base_digest) return;
  throw Error(ErrorCode::kWrongBase,
              fmt::format("its digest is {}, but '{}' starts from {}", to_hex(digest.value), delta.name(),
                          to_hex(delta.header().base_digest.value)),
              path);
}

Checkpoint open_base(FileSystem& fs, const std::string& path, const DeltaFile& delta, int threads) {
  require_not_interrupted(fs, path);
  Checkpoint base = Checkpoint::open(fs, path);
  base.declare(pairs_of(delta.table()));
  require_same_table(base.table(), path, delta.table(), delta.name());
  const CheckpointStore store(base);
  require_base(sum(digest_store(store, threads)), path, delta);
  return base;
}

}  // namespace sparsecast::tools
