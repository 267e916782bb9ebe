// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "log/trust.hpp"
#include "sparsecast/delta_log.hpp"

namespace sparsecast {

/// Checks that `next` is a valid successor of `before`: hash of the predecessor, version, stream, table, base digest,
/// epoch and publisher, keys. Throws Error{kMixed | kReplayed | kRolledBack} that names `name`, the place of `next`.
void require_follows(const LogCommit& before, const LogCommit& next, const std::string& name);

/// Knowledge of a reader about its log, and the functions that extend it. `mutex` guards every member but `store` and
/// `trust`; it is held while records (not deltas or anchors) are read.
struct LogReader::State {
  State(std::shared_ptr<ObjectStore> object_store, LogTrust whom);

  std::string name_of(const std::string& key) const;
  bool has_commit(std::uint64_t version);

  /// Reads a commit and checks its form and its place, nothing else.
  std::optional<LogCommit> load(std::uint64_t version);
  /// Checks the commit against all that is known and believes it, or throws.
  void accept(const LogCommit& commit);
  void remember(const LogCommit& seen);

  /// Returns the head, however old it is.
  std::optional<LogCommit> find_head();
  std::optional<LogCommit> read_commit(std::uint64_t version);
  std::optional<LogCatalog> read_catalog();
  std::uint64_t first_version();

  std::shared_ptr<ObjectStore> store;
  LogTrust trust;
  std::mutex mutex;
  std::optional<LogCommit> newest;  ///< Remembered (then perhaps only in part), or believed.
  TrustedKeys keys;
  std::set<ContentHash> vouched;  ///< Anchors that a believed catalog names.

 private:
  std::optional<std::uint64_t> starting_point();
  std::uint64_t highest_from(std::uint64_t version);
  std::optional<std::uint64_t> hinted_head();
  std::vector<std::uint64_t> listed_versions();
  void require_same_history(const LogCommit& head);
  void keep(const LogCommit& commit);

  static constexpr std::size_t kKept = 2048;
  std::map<std::uint64_t, LogCommit> kept_;  ///< Believed commits; the newest kKept.
  std::optional<std::uint64_t> first_;
};

}  // namespace sparsecast
