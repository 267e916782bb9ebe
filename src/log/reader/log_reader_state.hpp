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

/// Knows which keys were in force at which version, for a reader with pinned keys (docs/delta-log.md, "Trust"):
///
///     nothing believed --commit signed by a pinned key (1)--> believed
///     believed, newer commit --changes of keys lead back to a believed commit--> believed
///     believed, older commit --changes of keys, read backwards, name the keys of its time--> believed
///
/// (1) Or a commit from which changes of keys lead back to a pinned key. If an earlier process has seen commits of this
/// log (remember()), the keys must also agree with the remembered ones.
///
/// A change of keys is signed by a key that is in both the old and the new set, so that the keys before and the keys
/// after it can verify the change. Reads two commits for each change, and at most kMaxChanges changes.
class TrustedKeys {
 public:
  static constexpr std::size_t kMaxChanges = 4096;
  /// Function that returns the commit of a version, after it has checked the form and the place of the commit, but not
  /// its signer. Throws if there is no such commit.
  using ReadCommit = std::function<LogCommit(std::uint64_t version)>;

  explicit TrustedKeys(std::vector<PublicKey> pinned);

  /// Returns whether keys are pinned. If so, all records must be signed.
  bool required() const noexcept { return !pinned_.empty(); }
  /// Restores the newest commit that an earlier process has seen. That process may have had other pinned keys, or none.
  /// So this commit makes no key trusted, but commits that contradict it are not believed.
  void remember(const LogCommit& commit);
  /// Verifies the commit against the keys in force at its version, and remembers its keys. Calls read() for commits
  /// that changed the keys. Without pinned keys, only checks that a commit that lists keys is signed by one of them.
  /// Throws Error{kUnsigned | kForeignKey | kMixed} naming `name`, the place of the commit.
  void believe(const LogCommit& commit, const std::string& name, const ReadCommit& read);
  /// Checks the signer of a record that is not a commit: throws unless `signer` is one of the keys in force at the
  /// newest commit that was believed. Does nothing without pinned keys. Errors name `name`, the place of the record.
  void require_current(const std::optional<PublicKey>& signer, const std::string& name) const;

 private:
  struct Period {
    std::uint64_t since = 0;  ///< Version of the commit that set these keys. They sign the commits after that version.
    std::vector<PublicKey> keys;
    friend bool operator==(const Period&, const Period&) = default;
  };

  static Period period_of(const LogCommit& commit) { return {commit.keys_version, commit.keys}; }
  static void require_own_key(const LogCommit& commit, const std::string& name);
  void believe_newer(const LogCommit& commit, const std::string& name, const ReadCommit& read);
  void believe_older(const LogCommit& commit, const std::string& name, const ReadCommit& read);
  void begin(std::vector<Period> periods, const LogCommit& commit, const std::string& name, const ReadCommit& read);
  /// Returns the keys in force at `version`. Reads earlier changes of keys as far as needed. Errors are about the
  /// commit `asker`, which is being verified, and its place `name`.
  const Period& period_at(std::uint64_t version, const LogCommit& asker, const std::string& name,
                          const ReadCommit& read);
  LogCommit read_change(const Period& period, const std::string& name, const ReadCommit& read) const;
  LogCommit read_before(const LogCommit& change, const std::string& name, const ReadCommit& read) const;

  std::vector<PublicKey> pinned_;
  std::optional<LogCommit> remembered_;
  /// The known periods, in ascending order and without gaps. The last period lasts until version newest_.
  std::vector<Period> periods_;
  std::uint64_t newest_ = 0;  ///< Newest version whose commit was believed; has no meaning while periods_ is empty.
};

/// Checks that `next` is a valid successor of `before`: version, hash of the predecessor, stream, table, base digest,
/// epoch, publisher and keys. Throws Error{kMixed | kReplayed | kRolledBack} naming `name`, the place of `next`.
void require_follows(const LogCommit& before, const LogCommit& next, const std::string& name);

/// State of a reader: the records of its log that it has read, and functions that read more. `mutex` guards all members
/// except `store` and `trust`. It is held while records are read, but not while deltas or anchors are read.
struct LogReader::State {
  State(std::shared_ptr<ObjectStore> object_store, LogTrust whom);

  std::string name_of(const std::string& key) const;
  bool has_commit(std::uint64_t version);

  /// Returns the commit of a version, or nullopt if there is none. Checks only the form and the place of the commit.
  std::optional<LogCommit> load(std::uint64_t version);
  /// Checks a commit against all known facts, and remembers that it is believed. Throws if the commit contradicts a
  /// fact.
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
  /// The newest commit that is either believed or remembered from an earlier process. A remembered commit may be
  /// incomplete.
  std::optional<LogCommit> newest;
  TrustedKeys keys;
  std::set<ContentHash> vouched;  ///< Record hashes of the anchors that a believed catalog names.

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
