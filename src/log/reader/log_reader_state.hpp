// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sparsecast/delta_log.hpp"

namespace sparsecast {

/// Keys in force at each version, as far as a reader with pinned keys knows (docs/delta-log.md, "Trust"):
///
///     nothing believed --commit signed by a pinned key (1)--> believed
///     believed, newer commit --changes of keys lead back to a believed commit--> believed
///     believed, older commit --changes of keys, read backwards, name the keys of its time--> believed
///
/// (1) Or a commit from which changes of keys lead back to a pinned key. If an earlier process has seen commits of this
/// log (remember()), the keys must also agree with the remembered ones.
///
/// A change of keys is signed by a key of both the old and the new set, so that both ends of a period verify it. Reads
/// two commits for each change, and at most kMaxChanges changes.
class TrustedKeys {
 public:
  static constexpr std::size_t kMaxChanges = 4096;
  /// Function that returns the commit of a version, after it has checked the commit's form and place, but not its
  /// signer. Throws if there is no such commit.
  using ReadCommit = std::function<LogCommit(std::uint64_t version)>;

  explicit TrustedKeys(std::vector<PublicKey> pinned);

  /// Returns whether keys are pinned, so that records must be signed.
  bool required() const noexcept { return !pinned_.empty(); }
  /// Restores the newest commit that an earlier process has seen. That process may have had other pinned keys, or none.
  /// So the commit makes no key trusted, but commits that contradict it are not believed.
  void remember(const LogCommit& commit);
  /// Verifies the commit against the keys in force at its version, and remembers its keys. Calls read() for commits at
  /// which keys changed. Throws Error{kUnsigned | kForeignKey | kMixed} that names `name`, the place of the commit.
  void believe(const LogCommit& commit, const std::string& name, const ReadCommit& read);
  /// Throws unless `signer`, that of a record that is not a commit, is one of the keys in force at the newest commit
  /// that was believed. Errors name `name`, the place of the record.
  void require_current(const std::optional<PublicKey>& signer, const std::string& name) const;

 private:
  struct Period {
    std::uint64_t since = 0;  ///< Version of the commit that set these keys, which sign the commits after it.
    std::vector<PublicKey> keys;
    friend bool operator==(const Period&, const Period&) = default;
  };

  static Period period_of(const LogCommit& commit) { return {commit.keys_version, commit.keys}; }
  static void require_own_key(const LogCommit& commit, const std::string& name);
  void believe_newer(const LogCommit& commit, const std::string& name, const ReadCommit& read);
  void believe_older(const LogCommit& commit, const std::string& name, const ReadCommit& read);
  void begin(std::vector<Period> periods, const LogCommit& commit, const std::string& name, const ReadCommit& read);
  /// Returns the keys in force at `version`, for the verification of the commit `asker`. Reads changes of keys
  /// backwards as far as needed.
  const Period& period_at(std::uint64_t version, const LogCommit& asker, const std::string& name,
                          const ReadCommit& read);
  LogCommit read_change(const Period& period, const std::string& name, const ReadCommit& read) const;
  LogCommit read_before(const LogCommit& change, const std::string& name, const ReadCommit& read) const;

  std::vector<PublicKey> pinned_;
  std::optional<LogCommit> remembered_;
  /// The known periods, ascending and without gaps. The last period reaches up to newest_.
  std::vector<Period> periods_;
  std::uint64_t newest_ = 0;  ///< Newest version whose commit was believed; meaningless while periods_ is empty.
};

/// Checks that `next` is a valid successor of `before`: hash of the predecessor, version, stream, table, base digest,
/// epoch and publisher, keys. Throws Error{kMixed | kReplayed | kRolledBack} that names `name`, the place of `next`.
void require_follows(const LogCommit& before, const LogCommit& next, const std::string& name);

/// State of a reader: the records of its log that it has read, and functions that read more. `mutex` guards all members
/// but `store` and `trust`; it is held while records, but not while deltas or anchors, are read.
struct LogReader::State {
  State(std::shared_ptr<ObjectStore> object_store, LogTrust whom);

  std::string name_of(const std::string& key) const;
  bool has_commit(std::uint64_t version);

  /// Returns the commit of a version, or nullopt if there is none. Checks only its form and its place.
  std::optional<LogCommit> load(std::uint64_t version);
  /// Checks a commit against all known facts, and remembers it as believed. Throws if it contradicts them.
  void accept(const LogCommit& commit);
  void remember(const LogCommit& seen);

  /// Returns the newest commit of the log, however old it is; nullopt for an empty log.
  std::optional<LogCommit> find_head();
  std::optional<LogCommit> read_commit(std::uint64_t version);
  std::optional<LogCatalog> read_catalog();
  std::uint64_t first_version();

  std::shared_ptr<ObjectStore> store;
  LogTrust trust;
  std::mutex mutex;
  /// Newest commit that is remembered from an earlier process (then possibly incomplete) or believed.
  std::optional<LogCommit> newest;
  TrustedKeys keys;
  std::set<ContentHash> vouched;  ///< Hashes of the records of the anchors that a believed catalog names.

 private:
  std::optional<std::uint64_t> starting_point();
  std::uint64_t highest_from(std::uint64_t version);
  std::optional<std::uint64_t> hinted_head();
  std::vector<std::uint64_t> listed_versions();
  void require_same_history(const LogCommit& head);
  void keep(const LogCommit& commit);

  static constexpr std::size_t kKept = 2048;
  std::map<std::uint64_t, LogCommit> kept_;  ///< The newest kKept commits that were believed, by version.
  std::optional<std::uint64_t> first_;
};

}  // namespace sparsecast
