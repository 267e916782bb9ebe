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

/// The bytes of a delta file, as a list of pieces that may be anywhere in memory or in a file. Refers to the delta from
/// which it was made; that delta must outlive it.
class DeltaSource {
 public:
  explicit DeltaSource(const DeltaFile& file);
  DeltaSource(const Delta& delta, const TensorTable& table);
  /// Returns the delta from version `base_version` to the next version that changes nothing. `digest` is the digest of
  /// both versions. The result owns all its pieces.
  static DeltaSource unchanged(const StreamId& stream, const TensorTable& table, std::uint64_t base_version,
                               const StateDigest& digest);

  const DeltaHeader& header() const noexcept { return header_; }
  const CommitRecord& result() const noexcept { return result_; }
  std::uint64_t bytes() const noexcept;
  ContentHash hash() const;
  /// Calls take(piece) for each piece of the file's bytes, in order.
  void for_each(const std::function<void(ConstBytes piece)>& take) const;

 private:
  DeltaSource() = default;

  DeltaHeader header_;
  CommitRecord result_;
  std::vector<Bytes> owned_;  ///< Memory that some of `pieces_` refer to.
  std::vector<ConstBytes> pieces_;
  /// File whose frames go between the last element of `pieces_` and the elements before it; null if all bytes are in
  /// `pieces_`.
  const DeltaFile* file_ = nullptr;
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
  /// Returns a commit of kind `kind` for the version after `before`, with the same digest, and with all other fields
  /// that follow from `before`.
  LogCommit successor(const LogCommit& before, CommitKind kind, const std::string& label) const;
  /// Stores the delta durably as an object of the log, and sets the fields of `commit` that refer to it.
  void put_delta(const DeltaSource& delta, LogCommit& commit);
  /// Makes `commit` the current attempt. Returns or throws what settle() does for it.
  LogCommit attempt_commit(LogCommit commit);
  /// Tries to put the record of `attempt` into the log, also if an earlier call has tried it without a known result.
  /// Returns the commit once its record is in the log; the writer is then leading. Throws Error{kFenced} if another
  /// record has this place in the log.
  LogCommit settle();
  LogCommit publish(const DeltaSource& delta, const std::string& label);
  /// Completes `commit`, the successor of `before`, with a delta that changes nothing, and puts both into the log.
  /// Returns or throws what settle() does.
  LogCommit commit_unchanged(const LogCommit& before, LogCommit commit);

  // Catalog (catalog_update.cpp).
  using CatalogChange = std::function<void(LogCatalog& catalog)>;
  /// Calls `change` on the catalog that catalog_or_rebuilt() returns, and replaces the catalog in the store. Throws the
  /// errors of the store.
  void update_catalog(const CatalogChange& change);
  /// Adds a commit to the catalog in the store. Ignores a failure to write the catalog, which costs readers only time.
  void enter_commit(const LogCommit& commit);
  /// Returns the catalog. If it is missing or unusable, rebuilds it from the other objects of the log.
  LogCatalog catalog_or_rebuilt();
  /// Returns all anchors in the store whose records are valid, whether or not the catalog names them.
  std::vector<AnchorRef> stored_anchors();
  void write_catalog(LogCatalog& catalog);
  void write_floor(std::uint64_t version, const StreamId& stream);
  // Maintenance (anchors.cpp, compaction.cpp, gc.cpp).
  /// Merged deltas, indexed by their base version and target version.
  using MergedDeltas = std::map<std::pair<std::uint64_t, std::uint64_t>, DeltaRef>;
  double replay_seconds(const LogCatalog& catalog, std::uint64_t from, std::uint64_t to);
  std::vector<DeltaRef> parts_of(std::uint64_t from, std::uint64_t to, std::uint32_t step, const MergedDeltas& merged);
  std::optional<DeltaRef> merge_span(const std::vector<DeltaRef>& parts, FileSystem& fs, const std::string& scratch,
                                     std::optional<OpenMirror>& mirror, CompactReport& report);
  std::uint64_t oldest_kept(const LogCommit& newest, std::uint64_t floor, const RetentionPolicy& policy);

  /// Throws Error{kUsage | kForeignKey} if readers would not trust records that this writer signs, because it has no
  /// key or because its key is not one of the log's keys.
  void require_trusted_key(const LogCommit& head) const;

  /// Returns the newest commit of the log, however old it is. Throws Error{kUsage} if there is no log in the store.
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
  /// The commit that this writer has tried to put into the log without a known result; nullopt if there is none.
  std::optional<Attempt> attempt;
  MergedDeltas made;
  /// Pairs of base version and target version between which deltas cannot be merged, because their value codecs differ
  /// or because the mirror skipped a `context` delta.
  std::set<std::pair<std::uint64_t, std::uint64_t>> uncomposable;
};

}  // namespace sparsecast
