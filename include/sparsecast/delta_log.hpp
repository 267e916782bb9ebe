#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sparsecast/content_hash.hpp"
#include "sparsecast/delta.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/object_store.hpp"
#include "sparsecast/signing.hpp"

namespace sparsecast {

// The delta log (docs/delta-log.md): one commit object a version, created by put_if_absent, chained by
// hash. A version exists when its commit object does. Everything else is data that commits name by content hash, or
// hints.

enum class CommitKind {
  kGenesis,   ///< The first; the only one without a delta.
  kDelta,     ///< One step of training.
  kTakeover,  ///< A new publisher begins a new epoch; its delta is empty.
  kKeys,      ///< The set of trusted keys changes; its delta is empty.
};

/// A commit object, `commits/<version>`.
struct LogCommit {
  CommitKind kind = CommitKind::kDelta;
  StreamId stream;
  std::uint64_t version = 0;
  std::uint64_t epoch = 1;  ///< Never decreases along the log; raised by one by a takeover.
  Hash128 publisher;        ///< Random; one publisher object of one process.
  ContentHash previous;     ///< record_hash of the commit before; zero for the genesis.
  Hash128 table_hash;
  StateDigest base_digest;  ///< Of the version before.
  StateDigest digest;       ///< That receivers must reach.
  ContentHash delta;        ///< Of the delta file; zero for the genesis.
  std::uint64_t delta_bytes = 0;
  std::uint64_t changed = 0;          ///< Elements.
  std::uint64_t elements = 0;         ///< Of the table.
  std::chrono::milliseconds time{0};  ///< Since 1970, by the publisher's clock.
  std::string label;                  ///< The caller's own, for people: at most 256 bytes of printable ASCII.
  std::vector<PublicKey> keys;        ///< That may sign the versions after this one; empty: unsigned log.
  std::uint64_t keys_version = 0;     ///< The newest version, up to this one, at which the keys changed.
  std::optional<PublicKey> signer;

  ContentHash record_hash;  ///< Of the stored record; not a field of it.
};

/// A merged delta, or a single one, as the catalog names it.
struct DeltaRef {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  ContentHash hash;
  std::uint64_t bytes = 0;
  friend bool operator==(const DeltaRef&, const DeltaRef&) = default;
};

struct AnchorRef {
  std::uint64_t version = 0;
  ContentHash record_hash;  ///< Of the anchor record.
  std::uint64_t bytes = 0;  ///< Of its files.
  friend bool operator==(const AnchorRef&, const AnchorRef&) = default;
};

/// `catalog`: a hint, replaced after every publication. What it names is verified by hash; what it lacks costs time
/// only.
struct LogCatalog {
  StreamId stream;
  std::uint64_t head = 0;          ///< There were at least so many versions when it was written.
  std::vector<DeltaRef> deltas;    ///< Single ones, the newest, ascending.
  std::vector<DeltaRef> merged;    ///< Ascending by `to`, then `from`.
  std::vector<AnchorRef> anchors;  ///< Ascending.
  std::optional<PublicKey> signer;
};

/// `anchors/<version>-<record_hash>/anchor`: commits an ordinary checkpoint, whose files lie beside it.
struct LogAnchor {
  struct FileEntry {
    std::string name;  ///< "model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json".
    std::uint64_t bytes = 0;
    ContentHash hash;
    friend bool operator==(const FileEntry&, const FileEntry&) = default;
  };
  StreamId stream;
  std::uint64_t version = 0;
  ContentHash commit;  ///< record_hash of the commit of that version.
  Hash128 table_hash;
  StateDigest digest;
  std::vector<FileEntry> files;
  std::optional<PublicKey> signer;

  ContentHash record_hash;  ///< Of the stored record; not a field of it.
  std::uint64_t bytes() const noexcept;
};

/// `floor`: nothing that leads to, or away from, a version below this one is kept any more.
struct LogFloor {
  StreamId stream;
  std::uint64_t version = 0;
  std::optional<PublicKey> signer;
};

/// `leases/<name>`: a reader that needs everything from `version` on, until `expires`.
struct LogLease {
  StreamId stream;
  std::string name;  ///< 1 to 128 of [A-Za-z0-9._-].
  std::uint64_t version = 0;
  std::chrono::milliseconds renewed{0};  ///< Since 1970, by the reader's clock.
  std::chrono::milliseconds expires{0};
};

/// Whom a reader believes.
struct LogTrust {
  std::vector<PublicKey> pinned;         ///< Not empty: refuse what no chain of keys leads to from these.
  std::optional<StreamId> stream;        ///< Refuse another stream (kReplayed).
  std::chrono::milliseconds max_age{0};  ///< Of the newest commit, else kExpired; 0: any.
};

/// Reads and verifies. Every record is checked: form, own hash, stream, place, signature when keys are pinned; every
/// object by its hash while it is read. What was once seen is remembered: an older head, a lower epoch or another
/// commit of a known version is kRolledBack. Errors name location and key. Thread-safe.
class SPARSECAST_API LogReader {
 public:
  explicit LogReader(std::shared_ptr<ObjectStore> store, LogTrust trust = {});
  ~LogReader();
  LogReader(const LogReader&) = delete;
  LogReader& operator=(const LogReader&) = delete;

  ObjectStore& store() noexcept;
  const LogTrust& trust() const noexcept;
  /// What the caller has seen in an earlier life (a follower's state file), before the first call.
  void remember(const LogCommit& seen);

  /// The newest commit, found without listing: from what is remembered or the catalog's hint upwards by name. Nullopt
  /// when there is no log there. Throws kExpired by trust().max_age, after everything else was found good.
  std::optional<LogCommit> head();
  /// Of that version; nullopt when it is not there (not yet, or no more).
  std::optional<LogCommit> commit(std::uint64_t version);
  /// Nullopt when there is none, or it is unusable although nothing is forged (torn, of an older format): then the
  /// caller goes by commits alone.
  std::optional<LogCatalog> catalog();
  /// The lowest version from which everything is kept; the first version when nothing was ever removed. Throws
  /// Error{kUsage} when there is no log.
  std::uint64_t floor();
  LogAnchor anchor(const AnchorRef& ref);
  std::vector<LogLease>
  leases();  ///< Those that are live; broken ones count as live for as long as `list` shows them young.

  /// Copies the object into a new file at `path` of `fs` (atomic, not synced), hashing as it goes; ranges are read in
  /// parallel by the store. Throws kGone when it is not there, kMixed when its bytes are not the ones named.
  void fetch_delta(const DeltaRef& ref, FileSystem& fs, const std::string& path);
  /// Copies all files of an anchor into the existing directory.
  void fetch_anchor(const LogAnchor& anchor, FileSystem& fs, const std::string& directory,
                    const std::function<void(std::uint64_t done, std::uint64_t total)>& progress = nullptr);

 private:
  friend class LogWriter;
  std::optional<LogCommit> head_of_any_age();  ///< A log that nobody wrote to for long can be taken over.

  struct State;
  std::unique_ptr<State> state_;
};

/// What a new log begins with.
struct LogCreation {
  StreamId stream;  ///< All zero: random.
  std::uint64_t first_version = 0;
  std::shared_ptr<const TensorTable> table;
  StateDigest digest;           ///< Of the first version.
  std::vector<PublicKey> keys;  ///< Empty: the writer's own key if it has one.
  std::string label;
};

/// When an anchor is worth its bytes: as soon as replaying from the newest anchor (the cheapest path of deltas and
/// merged deltas) would take a joiner longer than reading an anchor. Times are bytes / bytes_per_second, plus
/// replay_seconds for each delta.
struct AnchorRule {
  double bytes_per_second = 1e9;
  double seconds_per_delta = 0.05;
  std::uint64_t min_versions = 8;     ///< Never closer together than this.
  std::uint64_t max_versions = 1024;  ///< Never further apart than this.
};

struct LogWriterOptions {
  std::shared_ptr<const SigningKey> key;  ///< Null: unsigned.
  /// All zero: random. Who goes on after a restart in the epoch that it began (resume()) gives the one that it had; it
  /// must have been made durable before create() or take_over().
  Hash128 publisher;
  std::vector<std::uint32_t> merge_spans{4, 16, 64};  ///< Each a multiple of the one before; empty: none are merged.
  AnchorRule anchor_rule;
  std::uint64_t anchor_file_bytes = std::uint64_t{4} << 30;  ///< Size of one file of an anchor.
  int threads = 1;
};

struct CompactReport {
  std::uint64_t merged = 0;  ///< Deltas written.
  std::uint64_t bytes = 0;
};

struct RetentionPolicy {
  std::uint64_t keep_versions = 256;           ///< At least the newest so many.
  std::chrono::milliseconds keep_time{0};      ///< And all younger than this.
  std::chrono::milliseconds grace{3'600'000};  ///< Unfinished uploads and temporary files are let be for so long.
  std::chrono::milliseconds max_lease{
      86'400'000};  ///< A lease that promises more counts only so long from its renewal.
  bool dry_run = false;
};

struct GcReport {
  std::uint64_t floor = 0;
  std::uint64_t removed_objects = 0;
  std::uint64_t removed_bytes = 0;
  std::uint64_t kept_bytes = 0;
  std::string held_by;  ///< The lease that kept the floor from rising further; empty: none.
};

/// The writing half; one epoch of one publisher, or a maintenance process (compact, anchors, gc), which needs no epoch.
/// Not thread-safe, but several writers may work on one log, in one process or many: whoever is fenced is told so.
class SPARSECAST_API LogWriter {
 public:
  /// `reader` outlives the writer and is shared.
  LogWriter(LogReader& reader, LogWriterOptions options);
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  /// Creates the log with its genesis commit. Throws kUsage when there is one.
  LogCommit create(const LogCreation& creation);
  /// Begins a new epoch by a commit of its own (the next version, same digest): from here on the publisher before
  /// cannot commit. `expected` is the digest that the caller's weights have: kWrongBase or kTableMismatch when the head
  /// has another. Throws kFenced when somebody else is faster.
  LogCommit take_over(std::shared_ptr<const TensorTable> table, const StateDigest& expected,
                      const std::string& label = {});
  /// Goes on in the epoch that this publisher (options.publisher) began in an earlier life, without a commit. Throws
  /// kFenced when the head is another publisher's, kWrongBase and kTableMismatch as take_over. Returns the head.
  LogCommit resume(std::shared_ptr<const TensorTable> table, const StateDigest& expected);
  /// Commits one delta of the next version (header.version == head + 1, base digest == head's): object first, durable;
  /// then the commit. Returns when it is durable. Repeating the call with the same delta after any error is safe, and
  /// is how an unknown outcome is settled. Throws kFenced when another publisher has the version, kUsage before
  /// create, take_over or resume, kForeignStream, kVersionGap, kWrongBase, kTableMismatch for a delta that does not
  /// belong.
  LogCommit publish(const DeltaFile& delta, const std::string& label = {});
  /// The same of records in memory.
  LogCommit publish(const Delta& delta, const std::string& label = {});
  /// Changes the trusted keys, by a commit of its own. The writer's own key is trusted before and after (kUsage): a new
  /// key is added by an old one, and then retires it. Catalog and floor are signed anew first.
  LogCommit set_keys(std::vector<PublicKey> keys, const std::string& label = {});
  /// The newest commit that this writer knows.
  const LogCommit& head() const;

  /// Stores `checkpoint`, a checkpoint on disk that holds `version`, as an anchor: reads it twice (hash and digest,
  /// which is verified against the commit's; then upload), windows at a time. An anchor that is there already is no
  /// error.
  AnchorRef write_anchor(FileSystem& fs, const std::string& checkpoint, std::uint64_t version);
  /// Whether the rule asks for an anchor at the head now.
  bool anchor_due();

  /// Composes what is missing of merged deltas up to the head, from the smallest span on, and enters them into the
  /// catalog. `scratch` is an existing directory for temporary files. `limit`: at most so many (0: all). Spans over
  /// deltas of different value codecs are left out.
  CompactReport compact(FileSystem& fs, const std::string& scratch, std::uint64_t limit = 0);

  /// Raises the floor as far as policy and leases allow, to the newest anchor there, and removes what lies below, and
  /// what crashed writers left. Order: floor durable, then leases read, then removal; a reader writes its lease, then
  /// reads the floor; so one of the two sees the other.
  GcReport gc(const RetentionPolicy& policy);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Something in a log that is not as it has to be.
struct LogProblem {
  std::string key;  ///< Of the object.
  ErrorCode code = ErrorCode::kCorrupt;
  std::string message;
};

struct LogVerifyOptions {
  bool anchors = true;  ///< Read them, too: each is copied whole into the scratch directory.
  int threads = 1;
  std::size_t max_problems = 20;                                          ///< So many are described; all are counted.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;  ///< Objects; may be empty.
};

struct LogVerifyReport {
  std::uint64_t first = 0;
  std::uint64_t floor = 0;
  std::uint64_t head = 0;
  std::uint64_t epoch = 0;  ///< Of the head.
  std::uint64_t commits = 0;
  std::uint64_t deltas = 0;  ///< Of what follows, each was read in full and decoded.
  std::uint64_t merged = 0;
  std::uint64_t anchors = 0;
  std::uint64_t bytes = 0;          ///< Read of deltas, merged deltas and anchors.
  std::uint64_t problem_count = 0;  ///< 0: the log is whole.
  std::vector<LogProblem> problems;
};

/// Reads the whole log anew: every commit and its predecessor, signatures (where keys are pinned), every object's hash,
/// every block of every delta, digests of deltas, merged deltas and anchors against the commits, catalog, floor and
/// leases. Goes on after what is wrong. `scratch` is an existing directory. Throws Error{kUsage} where there is no log,
/// and what the store or `fs` throws.
SPARSECAST_API LogVerifyReport verify_log(std::shared_ptr<ObjectStore> store, const LogTrust& trust, FileSystem& fs,
                                          const std::string& scratch, const LogVerifyOptions& options = {});

/// Where each thing lies in the store.
SPARSECAST_API std::string commit_key(std::uint64_t version);
SPARSECAST_API std::string delta_key(const DeltaRef& ref);  ///< deltas/<to>-<hash>.scd, merged/<from>-<to>-<hash>.scd
SPARSECAST_API std::string anchor_directory(const AnchorRef& ref);
SPARSECAST_API std::string lease_key(const std::string& name);

}  // namespace sparsecast
