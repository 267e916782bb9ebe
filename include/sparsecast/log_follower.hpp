#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sparsecast/delta_log.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/subscriber.hpp"

namespace sparsecast {

/// How to get from one version to another: an anchor or none, then deltas that join end to start.
struct CatchUpPath {
  std::optional<AnchorRef> anchor;
  std::vector<DeltaRef> deltas;
  std::uint64_t bytes = 0;
};

/// The cheapest path by bytes + objects * `object_cost_bytes` (what one more request costs, in bytes that could have
/// been read meanwhile); an anchor counts as one object; of equal ones that with fewer objects. `from`: the version
/// that is here, none for nothing. `edges` are all known deltas, single and merged; those that do not lead to a higher
/// version, or lead beyond `to`, are passed over. Empty when `from` is `to`; nullopt when there is none. Takes
/// n log n time in the number of edges and anchors.
SPARSECAST_API std::optional<CatchUpPath> cheapest_path(std::optional<std::uint64_t> from, std::uint64_t to,
                                                        const std::vector<DeltaRef>& edges,
                                                        const std::vector<AnchorRef>& anchors,
                                                        std::uint64_t object_cost_bytes);

/// What a follower keeps up to date. Implementations: a checkpoint on disk, live memory.
class SPARSECAST_API FollowerTarget {
 public:
  virtual ~FollowerTarget() = default;
  /// Brings the target to a state of one version, whatever a crash or an error has left (I4), and says which by its
  /// digest, verified by reading everything; nullopt: empty, or beyond repair, an anchor is needed.
  virtual std::optional<StateDigest> recover() = 0;
  /// From the delta's base to its version, and verifies the result's digest. Throws Error; the state is then that of the
  /// base, unless only recover() can say (I2, I3): it is called before anything else is asked for.
  virtual void apply(const DeltaFile& delta) = 0;
  /// Replaces everything by the checkpoint in `directory` (of the target's own file system, in scratch_directory()),
  /// whose digest must be `expected`; that is verified before anything is replaced. The target may keep the directory's
  /// files; it removes the directory in any case.
  virtual void reseed(const std::string& directory, std::uint64_t version, const StateDigest& expected) = 0;
  /// Where fetched objects may lie meanwhile: an existing directory.
  virtual std::string scratch_directory() = 0;
};

/// What is being done, in bytes (phases "fetching", "applying", "reading", ...); may be empty; from any thread.
using FollowerProgress = std::function<void(const char* phase, std::uint64_t done, std::uint64_t total)>;
using FollowerNote = std::function<void(const std::string& sentence)>;  ///< For people; may be empty.

struct CheckpointTargetOptions {
  int threads = 1;
  /// Off: pages are patched in place with a durable undo record, no second copy is ever made. On: each version is made
  /// in a copy that is renamed into place, so that readers of the old files are never disturbed.
  bool copy_on_write = false;
  FollowerProgress progress;
  FollowerNote note;
};

/// A checkpoint at `path` in Hugging Face's form, so that any engine loads it: a directory, or a single .safetensors
/// file, which is kept as one; what is not there yet becomes a file when its name ends so. `path` holds one whole
/// version, or (in place) an undo record beside the weights says that it holds none. A file is replaced in one step, a
/// directory by two renames, between which it is absent for a moment (a notification tells when not); its other files
/// (config.json, ...) go with it.
///
/// Temporary files and the follower's state lie in `path` + ".follow/", on the same file system. One process at a time:
/// an advisory lock is the caller's (the command takes one). Memory: one frame, two windows of at most 32 MiB a thread.
/// Disk: in place, the undo record (about as large as the delta); else one more copy. An anchor needs room for one too.
SPARSECAST_API std::unique_ptr<FollowerTarget> make_checkpoint_target(FileSystem& fs, const std::string& path,
                                                                      const CheckpointTargetOptions& options);

/// Live tensors of an engine. `pause` is called around each apply (true: stop reading the weights, false: go on), in
/// the thread of step(); may be empty; throws nothing. `scratch` is an existing directory. The subscriber outlives the
/// target; its stream is the log's, its own version number is set right. Memory: the delta. After each version a slice
/// of the tensors is audited (SubscriberOptions::audit_versions).
SPARSECAST_API std::unique_ptr<FollowerTarget> make_subscriber_target(Subscriber& subscriber,
                                                                      std::shared_ptr<const TensorTable> table,
                                                                      std::vector<TensorBytes> live, FileSystem& fs,
                                                                      const std::string& scratch,
                                                                      std::function<void(bool)> pause = nullptr);

/// After the last version of each step, and with every_version after each, in the thread of step(): what is notified
/// is not written to before the notification has ended. Failures are retried by the next step, before anything else;
/// so is one whose outcome a crash has hidden. A version that was there when the follower first began is not told.
struct FollowerNotification {
  /// Program and arguments, no shell. SPARSECAST_VERSION, SPARSECAST_DIGEST and SPARSECAST_STREAM are added to its
  /// environment. Failed unless it exits with 0; ended by SIGTERM, then SIGKILL, when time is over.
  std::vector<std::string> command;
  std::string url;          ///< POST of `json`, with "version", "digest" and "stream" added; needs 2xx.
  std::string json = "{}";  ///< An object.
  std::chrono::milliseconds timeout{300'000};
};

struct FollowerOptions {
  LogTrust trust;
  std::string lease;  ///< Its name; empty: none is taken (and gc may remove what is being read: then it starts again).
  std::chrono::milliseconds lease_time{3'600'000};
  std::uint64_t read_ahead_bytes = std::uint64_t{1} << 30;  ///< Of fetched objects on disk, or one if it is larger.
  int fetch_threads = 4;  ///< Objects fetched at a time; 0: one after another, in the thread of step().
  std::uint64_t object_cost_bytes = std::uint64_t{1} << 20;
  bool merged = true;           ///< Merged deltas may be taken.
  bool every_version = false;   ///< One by one, through single deltas, whatever it costs (after an anchor).
  bool allow_rollback = false;  ///< An operator's explicit wish: follow a log whose head is older than what was seen.
  FollowerNotification notify;
  FollowerProgress progress;
  FollowerNote note;
};

struct FollowReport {
  std::uint64_t version = 0;  ///< Where the target is now.
  std::uint64_t head = 0;
  std::uint64_t applied = 0;  ///< Deltas, merged ones count once.
  bool reseeded = false;      ///< From an anchor.
  std::uint64_t objects_read = 0;
  std::uint64_t bytes_read = 0;
  double fetch_seconds = 0;  ///< That applying had to wait for objects.
  double apply_seconds = 0;
};

/// The reading end (docs/following.md).
///
///     start: state file (what was seen) | recover target -> position by digest
///     step:  notification due -> head -> lease -> floor -> path -> fetch ahead | apply one by one -> state file
///            -> notification
///
/// The state file (path given; durable, replaced after each version) holds stream, highest commit seen, its hash and
/// epoch, the version of the target and trusted keys: a restart never goes back (I6). Every error leaves the target at
/// a verified version and the call may be repeated. An object that is gone or not what it should be is avoided: the step
/// plans again without it, a few times. Memory: what the target needs, the catalog and the list of edges between here
/// and the head. Not thread-safe, except stop().
class SPARSECAST_API LogFollower {
 public:
  /// Reads the state file. Throws Error{kCorrupt} when it is damaged: it protects against going back, so a person
  /// decides. `fs` outlives the follower.
  LogFollower(std::shared_ptr<ObjectStore> store, FileSystem& fs, std::string state_path,
              std::unique_ptr<FollowerTarget> target, FollowerOptions options);
  ~LogFollower();
  LogFollower(const LogFollower&) = delete;
  LogFollower& operator=(const LogFollower&) = delete;

  /// As far as the head is now, or `version` if given. Nothing to do is no error. Throws kIncomplete when there is no
  /// log yet, or no such version; kGone when no path leads there; kStaleVersion for a version that is older than the
  /// target's, unless allow_rollback; kRolledBack, kExpired and the other errors of LogReader; what the target throws;
  /// kIo or kTimeout of a notification, which is then due again.
  FollowReport step(std::optional<std::uint64_t> version = std::nullopt);
  /// step() for ever: polls every `interval` (one request when nothing is new), renews the lease, goes on after errors
  /// that may pass (kIo, kTimeout, kGone, and kIncomplete: told to `note`), until stop() or an error that needs a
  /// person. `reported`, if any, is called after each step that has changed the target.
  void follow(std::chrono::milliseconds interval, const std::function<void(const FollowReport&)>& reported = nullptr);
  void stop() noexcept;  ///< Ends follow() after the delta that is being applied; from any thread or signal handler.

  /// Of the target; nullopt until the first step has found it.
  std::optional<std::uint64_t> version() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsecast
