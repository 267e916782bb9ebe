// SPDX-License-Identifier: Apache-2.0
#include "log/reader/log_reader_state.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "log/format/log_keys.hpp"
#include "log/format/records.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

LogReader::State::State(std::shared_ptr<ObjectStore> object_store, LogTrust whom)
    : store(std::move(object_store)), trust(std::move(whom)), keys(trust.pinned) {}

std::string LogReader::State::name_of(const std::string& key) const { return store->location() + "/" + key; }

bool LogReader::State::has_commit(std::uint64_t version) { return store->size(commit_key(version)).has_value(); }

std::optional<LogCommit> LogReader::State::load(std::uint64_t version) {
  if (version >= kMaxVersion) return std::nullopt;
  const std::string key = commit_key(version);
  const std::optional<Bytes> record = store->get(key, kMaxRecordBytes);
  if (!record) return std::nullopt;
  const std::string name = name_of(key);
  LogCommit commit = parse_log_commit(*record, name);
  if (commit.version != version) {
    throw Error(ErrorCode::kReplayed, fmt::format("this is the commit of version {}", commit.version), name);
  }
  const std::optional<StreamId> stream = newest ? std::optional(newest->stream) : trust.stream;
  if (stream && !(commit.stream == *stream)) {
    throw Error(ErrorCode::kReplayed,
                fmt::format("it is of stream {}, not of {}", to_hex(commit.stream), to_hex(*stream)), name);
  }
  return commit;
}

void LogReader::State::accept(const LogCommit& commit) {
  const std::string name = name_of(commit_key(commit.version));
  const auto rolled_back = [&](const std::string& what) { throw Error(ErrorCode::kRolledBack, what, name); };
  const auto same = kept_.find(commit.version);
  if (same != kept_.end()) {
    if (same->second.record_hash != commit.record_hash) rolled_back("another commit of this version was seen before");
    return;
  }
  if (newest) {
    if (newest->version == commit.version && newest->record_hash != commit.record_hash) {
      rolled_back("another commit of this version was seen before");
    }
    if (commit.version > newest->version && commit.epoch < newest->epoch) {
      rolled_back(fmt::format("its epoch is {}, and epoch {} was seen before", commit.epoch, newest->epoch));
    }
    if (commit.version < newest->version && commit.epoch > newest->epoch) {
      throw Error(ErrorCode::kMixed, "its epoch is higher than that of a version after it", name);
    }
    if (commit.version == newest->version + 1 && commit.previous != newest->record_hash) {
      throw Error(ErrorCode::kMixed, "it names another predecessor than the one that was seen", name);
    }
  }
  const auto before = commit.version == 0 ? kept_.end() : kept_.find(commit.version - 1);
  if (before != kept_.end()) require_follows(before->second, commit, name);
  const auto after = kept_.find(commit.version + 1);
  if (after != kept_.end()) require_follows(commit, after->second, name);
  if (commit.kind == CommitKind::kGenesis && first_ && *first_ != commit.version) {
    throw Error(ErrorCode::kMixed, fmt::format("a genesis, and the log begins with version {}", *first_), name);
  }
  keys.believe(commit, name, [&](std::uint64_t version) {
    std::optional<LogCommit> found = load(version);
    if (!found) {
      throw Error(ErrorCode::kMixed, fmt::format("version {}, on which its keys rest, is not there", version), name);
    }
    return *found;
  });
  keep(commit);
}

void LogReader::State::keep(const LogCommit& commit) {
  if (commit.kind == CommitKind::kGenesis) first_ = commit.version;
  if (!newest || commit.version >= newest->version) newest = commit;
  kept_.emplace(commit.version, commit);
  if (kept_.size() > kKept) kept_.erase(kept_.begin());
}

void LogReader::State::remember(const LogCommit& seen) {
  if (newest && newest->version >= seen.version) return;
  newest = seen;
  keys.remember(seen);
}

std::optional<std::uint64_t> LogReader::State::hinted_head() {
  try {
    const std::optional<Bytes> record = store->get(kCatalogKey, kMaxRecordBytes);
    if (!record) return std::nullopt;
    return parse_log_catalog(*record, name_of(kCatalogKey)).head;
  } catch (const Error& error) {
    if (is_of_the_store(error)) throw;
    return std::nullopt;  // The catalog is only a hint here. Callers that read the catalog itself get the error.
  }
}

std::vector<std::uint64_t> LogReader::State::listed_versions() {
  std::vector<std::uint64_t> versions;
  for (const StoredObject& object : store->list(kCommitPrefix)) {
    if (const auto version = version_of_commit_key(object.key)) versions.push_back(*version);
  }
  return versions;
}

std::uint64_t LogReader::State::first_version() {
  if (first_) return *first_;
  if (has_commit(0)) return *(first_ = 0);
  const std::vector<std::uint64_t> versions = listed_versions();
  if (versions.empty()) throw Error(ErrorCode::kUsage, "there is no delta log", store->location());
  return *(first_ = *std::min_element(versions.begin(), versions.end()));
}

/// Returns a version from which to search for the head: the one after the newest known, the catalog's hint if that is
/// higher, 0, or the highest listed version. Returns nullopt if there is no commit. Throws Error{kRolledBack} if the
/// catalog names a missing version.
std::optional<std::uint64_t> LogReader::State::starting_point() {
  const std::optional<std::uint64_t> hint = hinted_head();
  if (newest) {
    if (!hint || *hint <= newest->version + 1) return newest->version + 1;
  }
  if (hint) {
    if (has_commit(*hint)) return hint;
    throw Error(ErrorCode::kRolledBack, fmt::format("the catalog has seen version {}, which is not there", *hint),
                name_of(commit_key(*hint)));
  }
  if (has_commit(0)) return 0;
  // Without a catalog and a version 0, the log began with another version, or there is none.
  const std::vector<std::uint64_t> versions = listed_versions();
  if (versions.empty()) return std::nullopt;
  return *std::max_element(versions.begin(), versions.end());
}

/// Returns the highest version whose commit exists, at or above `version`. Commits are never removed, so there are no
/// gaps. Searches in steps that double. Throws Error{kCorrupt} if the store claims an object that is not there: after
/// each longer step, the commit must be readable, and no step goes beyond kMaxVersion.
std::uint64_t LogReader::State::highest_from(std::uint64_t version) {
  std::uint64_t step = 1;
  while (version + step < kMaxVersion && has_commit(version + step)) {
    version += step;
    if (step > 1 && !load(version)) {
      throw Error(ErrorCode::kCorrupt, "the store says that it is there, and does not give it",
                  name_of(commit_key(version)));
    }
    step *= 2;
  }
  std::uint64_t absent = std::min(version + step, kMaxVersion);
  while (absent - version > 1) {
    const std::uint64_t middle = version + (absent - version) / 2;
    (has_commit(middle) ? version : absent) = middle;
  }
  return version;
}

/// Checks that the newest commit seen before is still there, if versions after it were skipped.
void LogReader::State::require_same_history(const LogCommit& head) {
  if (!newest || head.version <= newest->version + 1) return;
  const std::optional<LogCommit> seen = load(newest->version);
  if (!seen || seen->record_hash != newest->record_hash) {
    throw Error(ErrorCode::kRolledBack, "another commit of this version was seen before",
                name_of(commit_key(newest->version)));
  }
}

std::optional<LogCommit> LogReader::State::find_head() {
  const bool unchanged = newest && !has_commit(newest->version + 1);
  const std::optional<std::uint64_t> start = unchanged ? newest->version : starting_point();
  if (!start) return std::nullopt;
  const std::uint64_t version = unchanged ? *start : highest_from(*start);
  std::optional<LogCommit> head = load(version);
  if (!head) {
    throw Error(ErrorCode::kRolledBack, "this version was seen before, and is not there any more",
                name_of(commit_key(version)));
  }
  require_same_history(*head);
  // On the first read, the commit before the head reveals a head signed by a retired key. Later, the remembered keys
  // do.
  if (!newest && keys.required() && head->kind != CommitKind::kGenesis && version > 0) {
    const std::string name = name_of(commit_key(version));
    const std::optional<LogCommit> before = load(version - 1);
    if (!before) throw Error(ErrorCode::kMixed, "its predecessor is not there", name);
    require_follows(*before, *head, name);
  }
  accept(*head);
  return head;
}

std::optional<LogCommit> LogReader::State::read_commit(std::uint64_t version) {
  const auto kept = kept_.find(version);
  if (kept != kept_.end()) return kept->second;
  std::optional<LogCommit> commit = load(version);
  if (commit) {
    accept(*commit);
  } else if (newest && version == newest->version) {
    throw Error(ErrorCode::kRolledBack, "this version was seen before, and is not there any more",
                name_of(commit_key(version)));
  }
  return commit;
}

std::optional<LogCatalog> LogReader::State::read_catalog() {
  const std::string name = name_of(kCatalogKey);
  LogCatalog catalog;
  try {
    const std::optional<Bytes> record = store->get(kCatalogKey, kMaxRecordBytes);
    if (!record) return std::nullopt;
    catalog = parse_log_catalog(*record, name);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kUnsupported) return std::nullopt;
    throw;
  }
  if (!newest && !find_head()) return std::nullopt;
  if (!(catalog.stream == newest->stream)) throw Error(ErrorCode::kReplayed, "it is of another stream", name);
  keys.require_current(catalog.signer, name);
  vouched.clear();
  for (const AnchorRef& anchor : catalog.anchors) vouched.insert(anchor.record_hash);
  return catalog;
}

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
