// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sparsecast/control_channel.hpp"
#include "sparsecast/delta_log.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/layout.hpp"
#include "sparsecast/subscriber.hpp"

namespace sparsecast {

/// A path from one version to another: an optional anchor, then consecutive deltas.
struct CatchUpPath {
  std::optional<AnchorRef> anchor;
  std::vector<DeltaRef> deltas;
  std::uint64_t bytes = 0;  ///< Bytes of the anchor and the deltas.
};

/// Returns the cheapest path from `from` to `to` by bytes + objects * `object_cost_bytes`, where `object_cost_bytes` is
/// the number of bytes that could be read in the time of one request, and an anchor counts as one object. Among paths
/// of equal cost it returns the path with the fewest objects. `from` is the version that the caller has; nullopt when
/// it has none. `edges` are all known deltas, single and merged; deltas that do not lead to a higher version, or lead
/// beyond `to`, are ignored. The path is empty when `from` is `to`. Returns nullopt when no path exists. Takes n log n
/// time in the number of edges and anchors.
SPARSECAST_API std::optional<CatchUpPath> cheapest_path(std::optional<std::uint64_t> from, std::uint64_t to,
                                                        const std::vector<DeltaRef>& edges,
                                                        const std::vector<AnchorRef>& anchors,
                                                        std::uint64_t object_cost_bytes);

/// Weights that a follower keeps up to date. Implementations: a checkpoint on disk, live memory.
class SPARSECAST_API FollowerTarget {
 public:
  virtual ~FollowerTarget() = default;
  /// Brings the target to one consistent version after any crash or error (invariant I4 in docs/architecture.md), and
  /// returns its digest, which is computed by reading all weights. Returns nullopt when the target is empty or cannot
  /// be repaired, so that an anchor is needed.
  virtual std::optional<StateDigest> recover() = 0;
  /// Applies a delta and verifies the result's digest. When it throws Error, the target is at the delta's base, or in a
  /// state that only recover() can determine; the follower then calls recover() before any other function.
  virtual void apply(const DeltaFile& delta) = 0;
  /// Throws Error{kUsage} if reseed() with a checkpoint of the table of this hash (TensorTable::hash) would destroy
  /// data that is not a version of that table's tensors. The follower calls this before it fetches an anchor. By
  /// default everything may be replaced.
  virtual void require_replaceable(const Hash128& table_hash);
  /// Replaces everything by the checkpoint in `directory`, which lies in scratch_directory(). Its digest must be
  /// `expected`, which is verified before anything is replaced. The target may move the directory or its files away;
  /// the follower removes what is left, also after an error.
  virtual void reseed(const std::string& directory, std::uint64_t version, const StateDigest& expected) = 0;
  /// Returns an existing directory for fetched objects, on the target's own file system.
  virtual std::string scratch_directory() = 0;
};

/// Function that receives the progress of a phase ("fetching", "applying", "reading", ...): the bytes done so far, and
/// the bytes in total. Called in any thread. May be empty.
using FollowerProgress = std::function<void(const char* phase, std::uint64_t done, std::uint64_t total)>;
/// Function that receives messages for people; may be empty.
using FollowerNote = std::function<void(const std::string& sentence)>;

struct CheckpointTargetOptions {
  int threads = 1;
  /// When false, the files are changed in place, protected by a durable undo record, and there is no second copy. When
  /// true, each version is made in a copy that is renamed into place, so that readers of the old files are not
  /// disturbed.
  bool copy_on_write = false;
  /// Whether each delta with `context` positions, before it is applied, is also written with `packed` positions below
  /// `path` + ".follow/plain/". A compaction with this checkpoint as its mirror reads and removes these copies.
  bool keep_plain = false;
  /// Whether an anchor may replace a checkpoint of other tensors, or files that cannot be read. When false, an anchor
  /// is written only where no weights exist, over a checkpoint of the log's tensors, or over files that such a target
  /// wrote earlier as a checkpoint of these tensors; else Error{kUsage}.
  bool replace = false;
  FollowerProgress progress;
  FollowerNote note;
};

/// Makes a target for a checkpoint at `path` in Hugging Face's form, which any engine can load: a directory, or a
/// single .safetensors file. A new checkpoint is a file when `path` ends in .safetensors, otherwise a directory. At any
/// time `path` holds one whole version, unless (in place) an undo record next to the weights marks an unfinished
/// update. A file is replaced in one step. A directory is replaced by two renames, between which it is absent for a
/// moment; a notification is sent only while the directory exists. The directory's other files (config.json, weights
/// that the index of the checkpoint does not name, ...) are kept; a file whose name the checkpoint needs is
/// Error{kUsage}.
///
/// Temporary files and the follower's state are kept in `path` + ".follow/", on the same file system. Only one process
/// may use it at a time; the caller takes an advisory lock (as the command does). Memory: one frame, and two windows of
/// at most 32 MiB per thread. Disk: the undo record (about as large as the delta) when patching in place, otherwise one
/// more copy. An anchor also needs room for one more copy.
SPARSECAST_API std::unique_ptr<FollowerTarget> make_checkpoint_target(FileSystem& fs, const std::string& path,
                                                                      const CheckpointTargetOptions& options);

/// Makes a target for the live tensors of an engine, on the host or on a device: those of the subscriber, with the same
/// device options. `pause` is called around each write of the weights, in the thread of step(); it may be empty, and
/// must not throw. pause(true) asks the engine to stop reading the weights, and may wait until it has. When it returns
/// false, nothing is written: the version that is staged is dropped, and step() throws Error{kTimeout}. Otherwise
/// pause(false) follows the write, and its result is not used. `scratch` is an existing directory. The subscriber must
/// outlive the target and have the log's stream; the target sets its version number. Memory: the delta; while an anchor
/// is written, 4 MiB, and 8 MiB of pinned memory for a device. After each version a slice of the tensors is audited
/// (SubscriberOptions::audit_versions). Throws Error{kUsage} that names the tensor for references that do not fit the
/// table; kUnsupported for a device in a build without the device backend.
SPARSECAST_API std::unique_ptr<FollowerTarget> make_subscriber_target(Subscriber& subscriber,
                                                                      std::shared_ptr<const TensorTable> table,
                                                                      const std::vector<TensorRef>& live,
                                                                      FileSystem& fs, const std::string& scratch,
                                                                      std::function<bool(bool)> pause = nullptr,
                                                                      const DeviceOptions& device = {});

/// One rank of an engine whose ranks each hold a part of a log's tensors. All ranks reach a version together, or none
/// does:
///
///     rank 0: LogFollower over make_engine_target()      other ranks: serve()
///
///     stage    every rank reads the delta from rank 0's scratch directory, cuts its part out of it, and stages that
///     pause    every rank asks its engine not to read the weights; if one refuses, nothing is written on any rank
///     apply    every rank writes its part; the digests of all parts must add up to that of the version
///     undo     if they do not, or a rank has failed, every rank takes its part back
///
/// Not thread-safe.
class SPARSECAST_API EngineRank {
 public:
  struct Options {
    SubscriberOptions subscriber;  ///< Options of this rank's subscriber; `stream` and `version` are not used.
    /// Called around each write of this rank's weights, in the thread of step() or serve(). pause(true) asks the engine
    /// to stop reading the weights, and returns false to refuse the write; pause(false) follows the write. See
    /// make_subscriber_target().
    std::function<bool(bool)> pause;
    /// Maximum time that a rank which has done a step (staged a delta, granted the pause, or written) waits until all
    /// other ranks have done it, too.
    std::chrono::milliseconds timeout{120'000};
    DeviceOptions device;
  };

  /// Verifies that all ranks have the same table and layout; collective over `ranks`, where rank r is rank r of
  /// `layout`. `table` has the log's tensors, and `layout`, the same on all ranks, must hold all of them; `local` are
  /// the tensors of this rank of the layout, as in ShardedSubscriber. The caller keeps them in place while the object
  /// exists. Reads them once, for their digest. `fs` must outlive the object. Throws Error{kUsage} that names tensor
  /// and box for a layout that does not hold a whole tensor of the log, kGroupMismatch when the ranks differ in table
  /// or layout, and the errors of the channel.
  EngineRank(std::shared_ptr<ControlChannel> ranks, std::shared_ptr<const TensorTable> table,
             const std::shared_ptr<const Layout>& layout, std::vector<TensorRef> local, FileSystem& fs,
             Options options);
  ~EngineRank();
  EngineRank(const EngineRank&) = delete;
  EngineRank& operator=(const EngineRank&) = delete;

  /// For all ranks but rank 0: takes part in the steps of rank 0's target, and returns when that target has been
  /// destroyed. An error of a step is thrown on rank 0 only. Throws the errors of the channel, after which no rank goes
  /// on. ControlChannel::abort() in another thread ends the call.
  void serve();
  /// Returns true when this rank's weights may not be those of one version: a write stopped half-way, or this rank has
  /// written but has not heard whether all ranks have. Only an anchor repairs them. `pause` may call this function,
  /// too.
  bool dirty() const noexcept;

 private:
  friend std::unique_ptr<FollowerTarget> make_engine_target(EngineRank& rank, const std::string& scratch);
  struct State;
  std::unique_ptr<State> state_;
};

/// Makes the target of an engine of several ranks; only rank 0 calls this (Error{kUsage}). `rank` must outlive the
/// target, and `scratch` is an existing directory that all ranks can read under this path. Each function of the target
/// waits for all ranks. Deltas with `context` positions are Error{kUnsupported}: a rank that holds a part cannot decode
/// them.
SPARSECAST_API std::unique_ptr<FollowerTarget> make_engine_target(EngineRank& rank, const std::string& scratch);

/// Notification sent after the last version of each step (with every_version, after each version), in the thread of
/// step(). The weights are not written until the notification has ended. The next step first retries a notification
/// that failed, or whose outcome is unknown after a crash. No notification is sent for the version at which the
/// follower first started.
struct FollowerNotification {
  /// Program and arguments, run without a shell. SPARSECAST_VERSION, SPARSECAST_DIGEST and SPARSECAST_STREAM are added
  /// to its environment. The notification has failed unless the program exits with 0; after the timeout the program is
  /// ended by SIGTERM, then SIGKILL.
  std::vector<std::string> command;
  /// URL to which `json` is sent by POST, with "version", "digest" and "stream" added; the notification has failed
  /// unless the HTTP status of the answer is 2xx. Empty: none.
  std::string url;
  std::string json = "{}";  ///< The JSON object that is sent to `url`.
  std::chrono::milliseconds timeout{300'000};
};

struct FollowerOptions {
  LogTrust trust;
  /// Name of the lease that protects objects in use; empty: no lease, and gc may remove such objects, which restarts
  /// the step.
  std::string lease;
  std::chrono::milliseconds lease_time{3'600'000};
  /// Maximum number of bytes of fetched objects that wait on disk to be applied; a single object may be larger.
  std::uint64_t read_ahead_bytes = std::uint64_t{1} << 30;
  int fetch_threads = 4;  ///< Number of objects fetched concurrently; 0: one after another, in the thread of step().
  /// Number of bytes that could be read in the time of one request: the cost of an object in cheapest_path().
  std::uint64_t object_cost_bytes = std::uint64_t{1} << 20;
  bool merged = true;  ///< Whether merged deltas may be used to catch up.
  /// Whether every single delta (after an anchor) is applied, even where merged deltas are cheaper.
  bool every_version = false;
  bool allow_rollback = false;  ///< Whether to follow a log whose head is older than the head last seen.
  FollowerNotification notify;
  FollowerProgress progress;
  FollowerNote note;
};

struct FollowReport {
  std::uint64_t version = 0;  ///< Version of the target now.
  std::uint64_t head = 0;     ///< Newest version of the log.
  std::uint64_t applied = 0;  ///< Number of applied deltas; a merged delta counts once.
  bool reseeded = false;      ///< True when the target was replaced from an anchor.
  std::uint64_t objects_read = 0;
  std::uint64_t bytes_read = 0;
  double fetch_seconds = 0;  ///< Seconds for which applying waited for objects to be fetched.
  double apply_seconds = 0;
};

/// Follows a delta log and applies its versions to a target (docs/following.md).
///
///     start: state file (what was seen) | recover target -> position by digest
///     step:  notification due -> head -> lease -> floor -> path -> fetch ahead | apply one by one -> state file
///            -> notification
///
/// The state file (at `state_path`; durable, replaced after each version) holds the stream, the highest commit seen
/// with its hash and epoch, the version of the target, and trusted keys, so that a restart never goes back (I6). Every
/// error leaves the target at a verified version, and the call may be repeated. When an object is missing or invalid,
/// the step plans again without it, a few times. Memory: that of the target, the catalog, and the list of deltas
/// between the target and the head. Not thread-safe, except stop() and look().
class SPARSECAST_API LogFollower {
 public:
  /// Reads the state file at `state_path`, if there is one. Throws Error{kCorrupt} when the file is damaged: it
  /// protects against going back, so an operator must decide. `fs` must outlive the follower.
  LogFollower(std::shared_ptr<ObjectStore> store, FileSystem& fs, std::string state_path,
              std::unique_ptr<FollowerTarget> target, FollowerOptions options);
  ~LogFollower();
  LogFollower(const LogFollower&) = delete;
  LogFollower& operator=(const LogFollower&) = delete;

  /// Brings the target to the current head, or to `version` if given. Returns normally when there is nothing to do.
  /// Throws kIncomplete when there is no log yet, or no such version; kGone when no path leads to it; kStaleVersion for
  /// a version that is older than the target's, unless allow_rollback; kRolledBack, kExpired and the other errors of
  /// LogReader; errors of the target; kIo or kTimeout of a notification, which is then due again.
  FollowReport step(std::optional<std::uint64_t> version = std::nullopt);
  /// Repeats step() until stop() or an error that needs an operator. Polls every `interval` (one request when nothing
  /// is new), renews the lease, and continues after transient errors (kIo, kTimeout, kGone and kIncomplete), which it
  /// reports to `note`. `reported`, if any, is called after each step that has changed the target.
  void follow(std::chrono::milliseconds interval, const std::function<void(const FollowReport&)>& reported = nullptr);
  /// Makes follow() return after the current delta. May be called in any thread or signal handler.
  void stop() noexcept;

  /// Returns the version of the target; nullopt until the first step has determined it.
  std::optional<std::uint64_t> version() const noexcept;
  /// Returns the version to which step() is bringing the target with a delta or an anchor that is fetched and checked;
  /// nullopt at any other time. For the thread of step(), and so for the `pause` of a target of live tensors.
  std::optional<std::uint64_t> staged() const noexcept;
  /// Returns the newest version of the log, and changes nothing; makes one request when nothing is new. May be called
  /// in any thread, also while step() runs or waits in the `pause` of a target. Throws kIncomplete when there is no
  /// log, and the errors of LogReader::head() for a log that must not be followed.
  std::uint64_t look();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsecast
