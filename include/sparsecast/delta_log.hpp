// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sparsecast/delta.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/io.hpp"
#include "sparsecast/object_store.hpp"
#include "sparsecast/safetensors.hpp"

namespace sparsecast {

/// An Ed25519 (RFC 8032) public key.
struct PublicKey {
  std::array<std::byte, 32> bytes{};
  friend auto operator<=>(const PublicKey&, const PublicKey&) = default;
};

/// Returns "ed25519:" and 64 lower-case hexadecimal digits, which is the form in records, key files and options.
SPARSECAST_API std::string to_string(const PublicKey& key);
/// Parses the output of to_string. Throws Error{kUsage} for malformed text, kUnsupported for another algorithm.
SPARSECAST_API PublicKey public_key_from_string(const std::string& text);
/// Returns the public keys in a file, one per line; empty lines and lines that begin with '#' are skipped. Throws
/// Error{kIo | kUsage} with path and line.
SPARSECAST_API std::vector<PublicKey> read_public_keys(FileSystem& fs, const std::string& path);

using Signature = std::array<std::byte, 64>;

/// Returns true when `signature` is the Ed25519 signature of `message` by the owner of `key`.
SPARSECAST_API bool verify_signature(const PublicKey& key, std::span<const std::byte> message,
                                     const Signature& signature) noexcept;

/// A secret key in locked memory, which the destructor wipes. Not copyable; shared by shared_ptr.
class SPARSECAST_API SigningKey {
 public:
  /// Returns a new random key.
  static std::shared_ptr<const SigningKey> generate();
  /// Returns the key in a file that save() wrote. Throws Error{kIo | kUsage}; kUsage also when users other than the
  /// owner may read the file.
  static std::shared_ptr<const SigningKey> load(FileSystem& fs, const std::string& path);
  /// Writes the key to a new file that only its owner may read: "ed25519-secret:" and 64 hexadecimal digits of the
  /// seed. Throws Error{kIo} when the file exists already.
  void save(FileSystem& fs, const std::string& path) const;
  ~SigningKey();
  SigningKey(const SigningKey&) = delete;
  SigningKey& operator=(const SigningKey&) = delete;

  const PublicKey& public_key() const noexcept { return public_key_; }
  Signature sign(std::span<const std::byte> message) const;

 private:
  SigningKey() = default;
  struct Secret;
  std::unique_ptr<Secret> secret_;
  PublicKey public_key_;
};

// The delta log (docs/delta-log.md) has one commit object a version, created by put_if_absent and chained by hash. A
// version exists when its commit object does. All other objects are hints, or data that commits name by content hash.

enum class CommitKind {
  kGenesis,   ///< The first commit; the only one without a delta.
  kDelta,     ///< One step of training.
  kTakeover,  ///< A new publisher begins a new epoch; its delta is empty.
  kKeys,      ///< The set of trusted keys changes; its delta is empty.
};

/// A commit object, `commits/<version>`.
struct LogCommit {
  CommitKind kind = CommitKind::kDelta;
  StreamId stream;
  std::uint64_t version = 0;
  /// Number of the epoch. It never decreases along the log, and a takeover raises it by one.
  std::uint64_t epoch = 1;
  Hash128 publisher;     ///< Random identifier of one publisher object of one process.
  ContentHash previous;  ///< LogCommit::record_hash of the previous version's commit; zero for the genesis.
  Hash128 table_hash;
  StateDigest base_digest;  ///< Digest of the previous version.
  StateDigest digest;       ///< Digest that receivers must reach.
  ContentHash delta;        ///< Hash of the delta file; zero for the genesis.
  std::uint64_t delta_bytes = 0;
  std::uint64_t changed = 0;          ///< Number of changed elements.
  std::uint64_t elements = 0;         ///< Number of elements in the table.
  std::chrono::milliseconds time{0};  ///< Time of the commit, since 1970 (UTC), by the publisher's clock.
  std::string label;                  ///< The caller's text for people: at most 256 bytes of printable ASCII.
  std::vector<PublicKey> keys;        ///< Keys that may sign the versions after this one; empty: the log is not signed.
  std::uint64_t keys_version = 0;     ///< Version of the newest commit, up to this one, that changed the trusted keys.
  std::optional<PublicKey> signer;

  ContentHash record_hash;  ///< Hash of the stored record; not a field of it.
};

/// Reference to a merged or single delta, from version `from` to version `to`, as the catalog stores it.
struct DeltaRef {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  ContentHash hash;
  std::uint64_t bytes = 0;
  friend bool operator==(const DeltaRef&, const DeltaRef&) = default;
};

struct AnchorRef {
  std::uint64_t version = 0;
  ContentHash record_hash;  ///< Hash of the anchor record.
  std::uint64_t bytes = 0;  ///< Total size of the anchor's files, in bytes; 0: not known.
  friend bool operator==(const AnchorRef&, const AnchorRef&) = default;
};

/// The `catalog` object: a hint for readers that is replaced after every publication. Readers verify by hash the
/// objects that it names; a missing entry only costs them time.
struct LogCatalog {
  StreamId stream;
  std::uint64_t head = 0;          ///< Newest version of the log when the catalog was written.
  std::vector<DeltaRef> deltas;    ///< The newest single deltas, ascending by version.
  std::vector<DeltaRef> merged;    ///< Merged deltas, ascending by `to`, then `from`.
  std::vector<AnchorRef> anchors;  ///< Anchors, ascending by version.
  std::optional<PublicKey> signer;
};

/// The object `anchors/<version>-<record_hash>/anchor`: the record of an anchor. It lists the files of an ordinary
/// checkpoint of one version, which are stored next to the record.
struct LogAnchor {
  struct FileEntry {
    std::string name;  ///< Name of the file, such as "model.safetensors" or "model.safetensors.index.json".
    std::uint64_t bytes = 0;
    ContentHash hash;
    friend bool operator==(const FileEntry&, const FileEntry&) = default;
  };
  StreamId stream;
  std::uint64_t version = 0;
  ContentHash commit;  ///< LogCommit::record_hash of the commit of this version.
  Hash128 table_hash;
  StateDigest digest;
  std::vector<FileEntry> files;
  std::optional<PublicKey> signer;

  ContentHash record_hash;  ///< Hash of the stored record; not a field of it.
  std::uint64_t bytes() const noexcept;
};

/// The `floor` object. Deltas and anchors that lead to or from a version below `version` are no longer kept.
struct LogFloor {
  StreamId stream;
  std::uint64_t version = 0;
  std::optional<PublicKey> signer;
};

/// The object `leases/<name>`, by which a reader states that it needs all objects from `version` on, until the time
/// `expires`. In the stored object both times are by the reader's clock, and only the duration between them counts. In
/// the result of LogReader::leases() `renewed` is the time at which the object was written, by the store's clock, and
/// `expires` is that time plus the duration.
struct LogLease {
  StreamId stream;
  std::string name;  ///< Name of the lease: 1 to 128 characters of [A-Za-z0-9._-].
  std::uint64_t version = 0;
  std::chrono::milliseconds renewed{0};  ///< Time of the last renewal, since 1970 (UTC).
  std::chrono::milliseconds expires{0};  ///< End of the lease, since 1970 (UTC).
};

/// Trust settings of a reader.
struct LogTrust {
  /// Keys that the reader trusts from the start. Unless this is empty, every object must be signed by one of these
  /// keys, or by a key that a chain of commits, which begins with these keys, has made a trusted key. Empty: the reader
  /// trusts the keys that the log itself names, if any.
  std::vector<PublicKey> pinned;
  /// The log's stream; an object of another stream is Error{kReplayed}. Nullopt: any stream.
  std::optional<StreamId> stream;
  /// Maximum age of the newest commit; when it is older, LogReader::head() throws Error{kExpired}. 0: any age.
  std::chrono::milliseconds max_age{0};
};

/// Reads and verifies a delta log. Checks each record's form, hash, stream and place, and its signature when keys are
/// pinned; checks each other object by its hash while it is read. Remembers the newest commit that it has read: an
/// older head, a lower epoch or another commit of a known version is Error{kRolledBack}. Errors name the store's
/// location and the object's key. Thread-safe.
class SPARSECAST_API LogReader {
 public:
  explicit LogReader(std::shared_ptr<ObjectStore> store, LogTrust trust = {});
  ~LogReader();
  LogReader(const LogReader&) = delete;
  LogReader& operator=(const LogReader&) = delete;

  ObjectStore& store() noexcept;
  const LogTrust& trust() const noexcept;
  /// Restores the newest commit that the caller had seen before a restart (from a follower's state file). Must be
  /// called before any other call.
  void remember(const LogCommit& seen);

  /// Returns the newest commit; nullopt when the store holds no log. Finds it without listing: tries the names of
  /// successive versions from the last one seen, or from the catalog's hint. Throws kExpired when the commit is older
  /// than trust().max_age, but only after all other checks have passed.
  std::optional<LogCommit> head();
  /// Returns the commit of a version; nullopt when it does not exist yet or has been removed.
  std::optional<LogCommit> commit(std::uint64_t version);
  /// Returns the catalog. Nullopt when there is none, or when it is unusable but not forged (torn, or of an older
  /// format); the caller then relies on commits alone.
  std::optional<LogCatalog> catalog();
  /// Returns the lowest version from which all deltas and anchors are kept; the first version when nothing was ever
  /// removed. Throws Error{kUsage} when there is no log.
  std::uint64_t floor();
  /// Returns the anchor record that `ref` names. Throws kGone when it does not exist, kMixed when its hash or size is
  /// not that of `ref`, kReplayed when it is of another version.
  LogAnchor anchor(const AnchorRef& ref);
  /// Returns the leases that have not expired. A lease that cannot be read counts as valid for one hour after it was
  /// written.
  std::vector<LogLease> leases();

  /// Copies the delta that `ref` names into a file at `path` of `fs`, and verifies its hash. The file appears under
  /// `path` only when it is complete and verified, but it is not synced to disk. The store reads ranges in parallel.
  /// Throws kGone when it does not exist, kMixed when its bytes do not match the reference.
  void fetch_delta(const DeltaRef& ref, FileSystem& fs, const std::string& path);
  /// Copies all files of an anchor into `directory`, which must exist. `progress` is called with the number of bytes
  /// copied so far and the number of all bytes; it may be empty.
  void fetch_anchor(const LogAnchor& anchor, FileSystem& fs, const std::string& directory,
                    const std::function<void(std::uint64_t done, std::uint64_t total)>& progress = nullptr);

 private:
  friend class LogWriter;
  /// Returns head() without the check of max_age, so that a log without recent commits can be taken over.
  std::optional<LogCommit> head_of_any_age();

  struct State;
  std::unique_ptr<State> state_;
};

/// Content of the genesis commit of a new log.
struct LogCreation {
  StreamId stream;  ///< Identifier of the new stream; all zero: a random one is chosen.
  std::uint64_t first_version = 0;
  std::shared_ptr<const TensorTable> table;
  StateDigest digest;           ///< Digest of the first version.
  std::vector<PublicKey> keys;  ///< Keys that may sign the log; empty: the writer's own key, if it has one.
  std::string label;
};

/// Rule for when to write an anchor: as soon as replaying from the newest anchor (by the cheapest path of deltas and
/// merged deltas) would take a joining reader longer than reading a new anchor. Times are estimated as bytes /
/// bytes_per_second, plus seconds_per_delta for each delta.
struct AnchorRule {
  double bytes_per_second = 1e9;
  double seconds_per_delta = 0.05;
  std::uint64_t min_versions = 8;     ///< Minimum number of versions from one anchor to the next.
  std::uint64_t max_versions = 1024;  ///< Maximum number of versions from one anchor to the next.
};

struct LogWriterOptions {
  std::shared_ptr<const SigningKey> key;  ///< Key that signs the objects; null: they are not signed.
  /// Identifier of the publisher. All zero: a random one is chosen. A process that calls resume() after a restart
  /// passes the identifier that it used before. It must have stored that identifier durably before create() or
  /// take_over().
  Hash128 publisher;
  /// Numbers of versions that merged deltas span; each is a multiple of the one before. Empty: no merging.
  std::vector<std::uint32_t> merge_spans{4, 16, 64};
  AnchorRule anchor_rule;
  std::uint64_t anchor_file_bytes = std::uint64_t{4} << 30;  ///< Size of one file of an anchor.
  int threads = 1;
};

struct CompactReport {
  std::uint64_t merged = 0;  ///< Number of merged deltas written.
  std::uint64_t bytes = 0;
  /// Number of spans left out because one of their deltas has `context` positions, which can be decoded only with its
  /// base weights, and the mirror has not applied that delta.
  std::uint64_t without_base = 0;
};

/// A checkpoint that follows the log (make_checkpoint_target with keep_plain). Deltas with `context` positions are
/// merged from the copies with `packed` positions that are kept next to this checkpoint.
struct MergeMirror {
  std::string checkpoint;
  std::uint64_t version = 0;  ///< Version that the checkpoint holds.
};

struct RetentionPolicy {
  std::uint64_t keep_versions = 256;           ///< Number of newest versions to keep.
  std::chrono::milliseconds keep_time{0};      ///< Versions that are younger than this duration are kept as well.
  std::chrono::milliseconds grace{3'600'000};  ///< Age at which unfinished uploads and temporary files are removed.
  /// Maximum time for which a lease is respected after its last renewal.
  std::chrono::milliseconds max_lease{86'400'000};
  bool dry_run = false;
};

struct GcReport {
  std::uint64_t floor = 0;
  std::uint64_t removed_objects = 0;
  std::uint64_t removed_bytes = 0;
  std::uint64_t kept_bytes = 0;
  std::string held_by;  ///< Name of the lease that kept the floor from rising further; empty: none did.
};

/// Writes a delta log, for one epoch of one publisher or for a maintenance process (compact, anchors, gc), which needs
/// no epoch. Not thread-safe, but several writers may work on one log, in one process or many: once another publisher
/// has taken the log over, a writer that publishes gets Error{kFenced}.
class SPARSECAST_API LogWriter {
 public:
  /// `reader` must outlive the writer. The caller and other writers may use it, too.
  LogWriter(LogReader& reader, LogWriterOptions options);
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  /// Creates the log with its genesis commit. Throws kUsage when the log exists already.
  LogCommit create(const LogCreation& creation);
  /// Begins a new epoch by a commit of its own, which makes the next version with the same weights. From then on the
  /// previous publisher cannot commit. Returns the commit. `expected` is the digest of the caller's weights. Throws
  /// kWrongBase or kTableMismatch when the digest or the table of the head differs, and kFenced when another publisher
  /// commits first.
  LogCommit take_over(std::shared_ptr<const TensorTable> table, const StateDigest& expected,
                      const std::string& label = {});
  /// Continues, without a commit, the epoch that this publisher (options.publisher) began before a restart. Returns the
  /// newest commit. Throws kFenced when it is another publisher's, and kWrongBase or kTableMismatch when its digest or
  /// its table is not that of the caller's weights.
  LogCommit resume(std::shared_ptr<const TensorTable> table, const StateDigest& expected);
  /// Commits the delta of the next version: its version is that of the head plus 1, and its base digest is the digest
  /// of the head. First makes the delta object durable, then the commit, and then returns. Repeating the call with the
  /// same delta after any error is safe, and is how an unknown outcome is settled. Throws kFenced when another
  /// publisher has committed the version, kUsage before create, take_over or resume, kForeignStream, kVersionGap,
  /// kWrongBase, kTableMismatch for a delta that does not continue the log.
  LogCommit publish(const DeltaFile& delta, const std::string& label = {});
  /// Commits a delta that is in memory, with the same rules.
  LogCommit publish(const Delta& delta, const std::string& label = {});
  /// Changes the trusted keys by a commit of its own. The writer's own key must be trusted before and after (kUsage).
  /// To rotate keys, a writer with the old key adds the new key, and then a writer with the new key removes the old
  /// one. Before the commit, signs the catalog and the floor again with the writer's key.
  LogCommit set_keys(std::vector<PublicKey> keys, const std::string& label = {});
  /// Returns the newest commit that this writer knows.
  const LogCommit& head() const;

  /// Stores `checkpoint`, the path of a checkpoint that holds `version`, as an anchor, and returns its reference. Reads
  /// the checkpoint twice, window by window: for its hashes and its digest, which must be the commit's, and then for
  /// the upload. An anchor that exists already is no error.
  AnchorRef write_anchor(FileSystem& fs, const std::string& checkpoint, std::uint64_t version);
  /// Stores an opened checkpoint, including the pairs of 4-bit numbers that Checkpoint::declare has given it; `path`
  /// names the checkpoint in errors.
  AnchorRef write_anchor(const Checkpoint& checkpoint, const std::string& path, std::uint64_t version);
  /// Returns true when LogWriterOptions::anchor_rule requires an anchor at the head now.
  bool anchor_due();

  /// Composes the missing merged deltas up to the head, smallest spans first, and enters them into the catalog.
  /// `scratch` is an existing directory for temporary files. At most `limit` deltas are written (0: all). Spans over
  /// deltas of different value codecs are skipped. Spans over deltas with `context` positions are skipped too, unless
  /// `mirror` has applied these deltas; the merged delta then has `context` positions.
  CompactReport compact(FileSystem& fs, const std::string& scratch, std::uint64_t limit = 0,
                        const std::optional<MergeMirror>& mirror = std::nullopt);

  /// Raises the floor to the newest anchor that the policy and the leases allow, and removes objects below the floor
  /// and remains of crashed writers. The floor is made durable before the leases are read and objects removed; a reader
  /// writes its lease before it reads the floor. Therefore gc() sees the lease, or the reader sees the floor.
  GcReport gc(const RetentionPolicy& policy);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A defect that verify_log() has found.
struct LogProblem {
  std::string key;  ///< Key of the object in the store.
  ErrorCode code = ErrorCode::kCorrupt;
  std::string message;
};

struct LogVerifyOptions {
  bool anchors = true;  ///< Whether anchors are verified, too; each is copied whole into the scratch directory.
  int threads = 1;
  /// Maximum number of problems to describe; LogVerifyReport::problem_count counts all of them.
  std::size_t max_problems = 20;
  /// Called with the number of objects verified so far, and the number of all objects; may be empty.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;
};

struct LogVerifyReport {
  std::uint64_t first = 0;
  std::uint64_t floor = 0;
  std::uint64_t head = 0;
  std::uint64_t epoch = 0;  ///< Epoch of the head.
  std::uint64_t commits = 0;
  std::uint64_t deltas = 0;         ///< Number of single deltas that were read in full, decoded and verified.
  std::uint64_t merged = 0;         ///< The same for merged deltas.
  std::uint64_t anchors = 0;        ///< The same for anchors.
  std::uint64_t bytes = 0;          ///< Bytes of deltas, merged deltas and anchors that were read.
  std::uint64_t problem_count = 0;  ///< Number of all problems found; 0: the log is intact.
  std::vector<LogProblem> problems;
};

/// Reads and verifies the whole log: every commit and its predecessor, signatures (where keys are pinned), every
/// object's hash, every block of every delta, digests of deltas, merged deltas and anchors against the commits,
/// catalog, floor and leases. Continues after a problem. `scratch` is an existing directory. Throws Error{kUsage} where
/// there is no log, and the errors of the store and of `fs`.
SPARSECAST_API LogVerifyReport verify_log(std::shared_ptr<ObjectStore> store, const LogTrust& trust, FileSystem& fs,
                                          const std::string& scratch, const LogVerifyOptions& options = {});

/// Returns the key of the object in the store that is the commit of `version`.
SPARSECAST_API std::string commit_key(std::uint64_t version);
/// Returns the key of a single delta, "deltas/<to>-<hash>.scd", or of a merged one, "merged/<from>-<to>-<hash>.scd".
SPARSECAST_API std::string delta_key(const DeltaRef& ref);
/// Returns the prefix, without a slash at its end, of the keys of an anchor's record and files.
SPARSECAST_API std::string anchor_directory(const AnchorRef& ref);
/// Returns the key in the store of the lease of this name.
SPARSECAST_API std::string lease_key(const std::string& name);

}  // namespace sparsecast
