#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "log/delta_source.hpp"
#include "sparsecast/delta_log.hpp"

namespace sparsecast {

/// The writing half's state (docs/delta-log.md, "Publishing"):
///
///     idle --create, take_over--> leading --another's commit in the next place--> fenced --take_over--> leading
///
/// While `attempt` is there, its record may or may not be in the log: nothing else is tried for its version.
struct LogWriter::State {
  enum class Standing { kIdle, kLeading, kFenced };
  struct Attempt {
    LogCommit commit;
    Bytes record;
  };

  State(LogReader& log, LogWriterOptions with);

  // Commits (log_writer.cpp, commit_attempt.cpp).
  void require_leading() const;
  /// The fields that any commit after `before` has.
  LogCommit successor(const LogCommit& before, CommitKind kind, const std::string& label) const;
  /// Makes the object durable and enters it into the commit.
  void put_delta(const DeltaSource& delta, LogCommit& commit);
  /// Begins the attempt and settles it.
  LogCommit attempt_commit(LogCommit commit);
  /// Tries the record of `attempt` (again); returns it when it is in the log. Error{kFenced} when another is.
  LogCommit settle();
  LogCommit publish(const DeltaSource& delta, const std::string& label);
  /// A commit with an empty delta, after `before`.
  LogCommit commit_unchanged(const LogCommit& before, LogCommit commit);

  // Catalog (catalog_update.cpp).
  using Change = std::function<void(LogCatalog& catalog)>;
  /// Reads, changes, replaces. Throws what the store throws.
  void update_catalog(const Change& change);
  /// The same after a commit: what cannot be written costs readers time and nothing else.
  void enter_commit(const LogCommit& commit);
  /// The catalog as it is, or where it is unusable what can be found out without it.
  LogCatalog catalog_or_rebuilt();
  /// Anchors whose records are in the store and are good, whether the catalog knows them or not.
  std::vector<AnchorRef> stored_anchors();
  void write_catalog(LogCatalog& catalog);
  void write_floor(std::uint64_t version, const StreamId& stream);
  // Maintenance (anchors.cpp, compaction.cpp, gc.cpp).
  using MergedDeltas = std::map<std::pair<std::uint64_t, std::uint64_t>, DeltaRef>;  ///< By from and to.
  double replay_seconds(const LogCatalog& catalog, std::uint64_t from, std::uint64_t to);
  std::vector<DeltaRef> parts_of(std::uint64_t from, std::uint64_t to, std::uint32_t step, const MergedDeltas& merged);
  std::optional<DeltaRef> merge_span(const std::vector<DeltaRef>& parts, FileSystem& fs, const std::string& scratch);
  std::uint64_t oldest_kept(const LogCommit& newest, std::uint64_t floor, const RetentionPolicy& policy);

  /// Records that this writer signs have to be believed by readers.
  void require_trusted_key(const LogCommit& head) const;

  /// The head, for maintenance: of any age. Error{kUsage} when there is no log.
  LogCommit current_head();
  LogCommit existing_commit(std::uint64_t version);
  ObjectStore& store() { return reader.store(); }
  const SigningKey* key() const noexcept { return options.key.get(); }
  std::string name_of(const std::string& object_key) { return store().location() + "/" + object_key; }
  std::chrono::milliseconds now();

  LogReader& reader;
  LogWriterOptions options;
  Hash128 publisher;
  Standing standing = Standing::kIdle;
  std::shared_ptr<const TensorTable> table;
  std::optional<LogCommit> head;
  std::optional<Attempt> attempt;
  MergedDeltas made;
  std::set<std::pair<std::uint64_t, std::uint64_t>> uncomposable;  ///< Spans tried in vain: another value codec begins.
};

}  // namespace sparsecast
