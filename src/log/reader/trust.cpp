// SPDX-License-Identifier: Apache-2.0
#include "log/reader/log_reader_state.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

bool contains(const std::vector<PublicKey>& keys, const PublicKey& key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

[[noreturn]] void refuse_key(const std::optional<PublicKey>& signer, const std::string& why, const std::string& name) {
  if (!signer) throw Error(ErrorCode::kUnsigned, "keys are pinned, and this has no signature", name);
  throw Error(ErrorCode::kForeignKey, fmt::format("{} signed it, {}", to_string(*signer), why), name);
}

}  // namespace

TrustedKeys::TrustedKeys(std::vector<PublicKey> pinned) : pinned_(std::move(pinned)) {}

void TrustedKeys::remember(const LogCommit& commit) {
  if (!remembered_ || commit.version > remembered_->version) remembered_ = commit;
}

void TrustedKeys::require_own_key(const LogCommit& commit, const std::string& name) {
  if (!commit.signer || commit.keys.empty()) refuse_key(std::nullopt, "", name);
  if (!contains(commit.keys, *commit.signer)) refuse_key(commit.signer, "which is not one of the log's keys", name);
}

void TrustedKeys::believe(const LogCommit& commit, const std::string& name, const ReadCommit& read) {
  if (!required()) {
    // Without pinned keys, only checks that a log that claims to be signed is signed.
    if (!commit.keys.empty()) require_own_key(commit, name);
    return;
  }
  require_own_key(commit, name);
  if (!periods_.empty() && commit.version <= newest_) {
    believe_older(commit, name, read);
  } else {
    believe_newer(commit, name, read);
  }
}

LogCommit TrustedKeys::read_change(const Period& period, const std::string& name, const ReadCommit& read) const {
  LogCommit change = read(period.since);
  if (period_of(change) != period || (change.kind != CommitKind::kKeys && change.kind != CommitKind::kGenesis)) {
    throw Error(ErrorCode::kMixed, fmt::format("version {} does not set the keys as it says", period.since), name);
  }
  require_own_key(change, name);
  return change;
}

/// Returns the commit before a change of keys. Checks that the change names it by hash and that its keys allow the
/// change.
LogCommit TrustedKeys::read_before(const LogCommit& change, const std::string& name, const ReadCommit& read) const {
  LogCommit before = read(change.version - 1);
  if (change.previous != before.record_hash) {
    throw Error(
        ErrorCode::kMixed,
        fmt::format("the change of keys at version {} follows another commit than the one there", change.version),
        name);
  }
  if (!before.keys.empty() && !contains(before.keys, *change.signer)) {
    refuse_key(change.signer, fmt::format("which might not change the keys at version {}", change.version), name);
  }
  return before;
}

void TrustedKeys::believe_newer(const LogCommit& commit, const std::string& name, const ReadCommit& read) {
  std::vector<Period> found;  // Newest first.
  for (LogCommit at = commit; found.size() <= kMaxChanges;) {
    const Period period = period_of(at);
    if (!periods_.empty() && period.since <= newest_) {
      if (period != periods_.back()) refuse_key(commit.signer, "and its keys are not, or no more, in force", name);
      periods_.insert(periods_.end(), found.rbegin(), found.rend());
      newest_ = commit.version;
      return;
    }
    if (found.empty() || found.back() != period) found.push_back(period);
    if (periods_.empty() && contains(pinned_, *at.signer)) {
      return begin({found.rbegin(), found.rend()}, commit, name, read);
    }
    if (at.version != period.since) {
      at = read_change(period, name, read);
      if (periods_.empty() && contains(pinned_, *at.signer)) continue;
    }
    if (at.kind == CommitKind::kGenesis) refuse_key(commit.signer, "and no change of keys leads to a pinned one", name);
    at = read_before(at, name, read);
    require_own_key(at, name);
  }
  refuse_key(commit.signer, fmt::format("and more than {} changes of keys lead to it", kMaxChanges), name);
}

void TrustedKeys::begin(std::vector<Period> periods, const LogCommit& commit, const std::string& name,
                        const ReadCommit& read) {
  periods_ = std::move(periods);
  newest_ = commit.version;
  // If a retired key is still pinned, the remembered later keys reveal that `commit` is forged.
  if (!remembered_ || remembered_->keys.empty() || remembered_->version > commit.version) return;
  try {
    if (period_at(remembered_->version, commit, name, read) == period_of(*remembered_)) return;
  } catch (...) {
    periods_.clear();
    throw;
  }
  periods_.clear();
  refuse_key(commit.signer, "and its keys are not, or no more, in force", name);
}

const TrustedKeys::Period& TrustedKeys::period_at(std::uint64_t version, const LogCommit& asker,
                                                  const std::string& name, const ReadCommit& read) {
  for (std::size_t i = 0; version < periods_.front().since; ++i) {
    if (i > kMaxChanges) refuse_key(asker.signer, fmt::format("more than {} changes of keys ago", kMaxChanges), name);
    const LogCommit change = read_change(periods_.front(), name, read);
    if (change.kind == CommitKind::kGenesis) {
      throw Error(ErrorCode::kMixed, fmt::format("the log begins with version {}", change.version), name);
    }
    periods_.insert(periods_.begin(), period_of(read_before(change, name, read)));
  }
  // A change of keys is also signed by a key of its new set, so one period suffices to check it.
  return *std::prev(std::upper_bound(periods_.begin(), periods_.end(), version,
                                     [](std::uint64_t at, const Period& period) { return at < period.since; }));
}

void TrustedKeys::believe_older(const LogCommit& commit, const std::string& name, const ReadCommit& read) {
  if (period_of(commit) != period_at(commit.version, commit, name, read)) {
    refuse_key(commit.signer, "whose keys were not in force then", name);
  }
}

void TrustedKeys::require_current(const std::optional<PublicKey>& signer, const std::string& name) const {
  if (!required()) return;
  if (!signer) refuse_key(signer, "", name);
  if (periods_.empty() || !contains(periods_.back().keys, *signer)) {
    refuse_key(signer, "which is not, or no more, one of the log's keys", name);
  }
}

}  // namespace sparsecast
