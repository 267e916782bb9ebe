#include "log/commit_chain.hpp"

#include <fmt/format.h>

#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

void require_epoch(const LogCommit& before, const LogCommit& next, const std::string& name) {
  if (next.epoch < before.epoch) {
    throw Error(ErrorCode::kRolledBack,
                fmt::format("its epoch is {}, and that of the version before is {}", next.epoch, before.epoch), name);
  }
  if (next.kind == CommitKind::kTakeover) {
    if (next.epoch != before.epoch + 1) {
      throw Error(ErrorCode::kMixed, fmt::format("a takeover begins epoch {}, not {}", before.epoch + 1, next.epoch),
                  name);
    }
  } else if (next.epoch != before.epoch || !(next.publisher == before.publisher)) {
    throw Error(ErrorCode::kMixed, "another publisher than that of the version before, without a takeover", name);
  }
}

void require_keys(const LogCommit& before, const LogCommit& next, const std::string& name) {
  const bool changes = next.kind == CommitKind::kKeys;
  if (changes ? next.keys_version != next.version
              : next.keys_version != before.keys_version || next.keys != before.keys) {
    throw Error(ErrorCode::kMixed, "its keys are not those of the version before, and it is not their change", name);
  }
}

}  // namespace

void require_follows(const LogCommit& before, const LogCommit& next, const std::string& name) {
  const auto mixed = [&](const std::string& what) { throw Error(ErrorCode::kMixed, what, name); };
  if (!(next.stream == before.stream)) {
    throw Error(ErrorCode::kReplayed, "it is of another stream than the version before", name);
  }
  if (next.version != before.version + 1 || next.kind == CommitKind::kGenesis) {
    mixed(fmt::format("it does not follow version {}", before.version));
  }
  if (next.previous != before.record_hash) mixed("it names another predecessor than the one that is there");
  require_epoch(before, next, name);
  if (!(next.table_hash == before.table_hash)) mixed("it has another tensor table than the version before");
  if (!(next.base_digest == before.digest)) mixed("its base digest is not the digest of the version before");
  if (next.kind != CommitKind::kDelta && !(next.digest == before.digest)) mixed("an empty delta changes the digest");
  require_keys(before, next, name);
}

}  // namespace sparsecast
