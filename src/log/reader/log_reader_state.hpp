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
  /// Reads a commit and checks its form and place, not its signer. Throws if there is none.
  using ReadCommit = std::function<LogCommit(std::uint64_t version)>;

  explicit TrustedKeys(std::vector<PublicKey> pinned);

  bool required() const noexcept { return !pinned_.empty(); }
  /// Restores the newest commit that an earlier process has seen. That process may have had other pinned keys, or none.
  /// So the commit makes no key trusted, but commits that contradict it are not believed.
  void remember(const LogCommit& commit);
  /// Verifies the commit against the keys in force and learns its keys. Throws Error{kUnsigned | kForeignKey | kMixed}
  /// that names `name`.
  void believe(const LogCommit& commit, const std::string& name, const ReadCommit& read);
  /// Checks the signer of a record that is not a commit: its key must be in force at the newest commit that was
  /// believed.
  void require_current(const std::optional<PublicKey>& signer, const std::string& name) const;

 private:
  struct Period {
    std::uint64_t since = 0;  ///< Version of the commit that set these keys. They sign the commits after it.
    std::vector<PublicKey> keys;
    friend bool operator==(const Period&, const Period&) = default;
  };

  static Period period_of(const LogCommit& commit) { return {commit.keys_version, commit.keys}; }
  static void require_own_key(const LogCommit& commit, const std::string& name);
  void believe_newer(const LogCommit& commit, const std::string& name, const ReadCommit& read);
  void believe_older(const LogCommit& commit, const std::string& name, const ReadCommit& read);
  void begin(std::vector<Period> periods, const LogCommit& commit, const std::string& name, const ReadCommit& read);
  /// Returns the keys in force at that version; reads changes of keys backwards as far as needed.
  const Period& period_at(std::uint64_t version, const LogCommit& asker, const std::string& name,
                          const ReadCommit& read);
  LogCommit read_change(const Period& period, const std::string& name, const ReadCommit& read) const;
  LogCommit read_before(const LogCommit& change, const std::string& name, const ReadCommit& read) const;

  std::vector<PublicKey> pinned_;
  std::optional<LogCommit> remembered_;
  std::vector<Period> periods_;  ///< Ascending, without gaps. The last period reaches up to newest_.
  std::uint64_t newest_ = 0;     ///< Newest believed version; meaningless while there are no periods.
};

/// Checks that `next` is a valid successor of `before`: hash of the predecessor, version, stream, table, base digest,
/// epoch and publisher, keys. Throws Error{kMixed | kReplayed | kRolledBack} that names `name`, the place of `next`.
void require_follows(const LogCommit& before, const LogCommit& next, const std::string& name);

/// State of a reader: the records of its log that it has read, and functions that read more. `mutex` guards all but
/// `store` and `trust`; it is held while records (not deltas or anchors) are read.
struct LogReader::State {
  State(std::shared_ptr<ObjectStore> object_store, LogTrust whom);

  std::string name_of(const std::string& key) const;
  bool has_commit(std::uint64_t version);

  /// Reads a commit and checks only its form and its place. Returns nullopt if there is none.
  std::optional<LogCommit> load(std::uint64_t version);
  /// Checks the commit against all known facts, and believes it or throws.
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
  std::optional<LogCommit> newest;  ///< Newest commit that is remembered (then possibly incomplete) or believed.
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
  std::map<std::uint64_t, LogCommit> kept_;  ///< The newest kKept believed commits.
  std::optional<std::uint64_t> first_;
};

}  // namespace sparsecast
