// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sparsecast/delta.hpp"
#include "sparsecast/delta_log.hpp"

namespace sparsecast {

struct OpenMirror;

/// The bytes of a delta file, as pieces that may be anywhere in memory. Refers to the delta that it was made from.
class DeltaSource {
 public:
  explicit DeltaSource(const DeltaFile& file);
  DeltaSource(const Delta& delta, const TensorTable& table);
  /// Creates the delta without changes from `base_version` to the next version.
  static DeltaSource unchanged(const StreamId& stream, const TensorTable& table, std::uint64_t base_version,
                               const StateDigest& digest);

  const DeltaHeader& header() const noexcept { return header_; }
  const CommitRecord& result() const noexcept { return result_; }
  std::uint64_t bytes() const noexcept;
  ContentHash hash() const;
  /// Calls `take` for each piece, in order.
  void for_each(const std::function<void(ConstBytes piece)>& take) const;

 private:
  DeltaSource() = default;

  DeltaHeader header_;
  CommitRecord result_;
  std::vector<Bytes> owned_;  ///< Memory that some of `pieces_` refer to.
  std::vector<ConstBytes> pieces_;
  const DeltaFile* file_ = nullptr;  ///< File whose frames come before the last piece, or null.
};

/// The writing half's state (docs/delta-log.md, "Publishing"):
///
///     idle --create, take_over--> leading --another's commit in the next place--> fenced --take_over--> leading
///
/// While `attempt` has a value, its record may or may not be in the log, and no other commit is tried for its version.
struct LogWriter::State {
  enum class Standing { kIdle, kLeading, kFenced };
  struct Attempt {
    LogCommit commit;
    Bytes record;
  };

  State(LogReader& log, LogWriterOptions with);

  // Commits (log_writer.cpp, commit_writer.cpp).
  void require_leading() const;
  /// Returns a commit with the fields that every successor of `before` has.
  LogCommit successor(const LogCommit& before, CommitKind kind, const std::string& label) const;
  /// Makes the delta object durable and sets the commit's reference to it.
  void put_delta(const DeltaSource& delta, LogCommit& commit);
  /// Starts an attempt to write the commit and settles it.
  LogCommit attempt_commit(LogCommit commit);
  /// Tries (again) to put the record of `attempt` into the log, and returns the commit once it is there. Throws
  /// Error{kFenced} if another record is in its place.
  LogCommit settle();
  LogCommit publish(const DeltaSource& delta, const std::string& label);
  /// Writes a commit with an empty delta after `before`.
  LogCommit commit_unchanged(const LogCommit& before, LogCommit commit);

  // Catalog (catalog_update.cpp).
  using CatalogChange = std::function<void(LogCatalog& catalog)>;
  /// Reads the catalog, applies `change`, and replaces the catalog. Throws what the store throws.
  void update_catalog(const CatalogChange& change);
  /// Adds a commit to the catalog. Ignores a failure to write the catalog, which only costs readers time.
  void enter_commit(const LogCommit& commit);
  /// Returns the catalog, or, if it is unusable, one rebuilt from the other objects of the log.
  LogCatalog catalog_or_rebuilt();
  /// Returns the anchors with valid records in the store, whether the catalog knows them or not.
  std::vector<AnchorRef> stored_anchors();
  void write_catalog(LogCatalog& catalog);
  void write_floor(std::uint64_t version, const StreamId& stream);
  // Maintenance (anchors.cpp, compaction.cpp, gc.cpp).
  /// Key: base version and target version.
  using MergedDeltas = std::map<std::pair<std::uint64_t, std::uint64_t>, DeltaRef>;
  double replay_seconds(const LogCatalog& catalog, std::uint64_t from, std::uint64_t to);
  std::vector<DeltaRef> parts_of(std::uint64_t from, std::uint64_t to, std::uint32_t step, const MergedDeltas& merged);
  std::optional<DeltaRef> merge_span(const std::vector<DeltaRef>& parts, FileSystem& fs, const std::string& scratch,
                                     std::optional<OpenMirror>& mirror, CompactReport& report);
  std::uint64_t oldest_kept(const LogCommit& newest, std::uint64_t floor, const RetentionPolicy& policy);

  /// Throws Error{kUsage | kForeignKey} unless readers would trust records that this writer signs.
  void require_trusted_key(const LogCommit& head) const;

  /// Returns the head for maintenance, however old it is. Throws Error{kUsage} if there is no log.
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
  /// Spans that cannot be composed: value codecs differ, or the mirror skipped a `context` delta.
  std::set<std::pair<std::uint64_t, std::uint64_t>> uncomposable;
};

}  // namespace sparsecast
