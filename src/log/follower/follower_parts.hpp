// SPDX-License-Identifier: Apache-2.0
#pragma once

// Internals of LogFollower. follower.cpp: start, step, notification, lease. follower_catch_up.cpp: bringing the target
// to another version.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "core/process_mark.hpp"
#include "log/follower/delta_fetcher.hpp"
#include "log/follower/follower_state.hpp"
#include "log/follower/log_map.hpp"
#include "sparsecast/digest.hpp"
#include "sparsecast/log_follower.hpp"
#include "sparsecast/object_store.hpp"

namespace sparsecast {

/// Throws Error{kUsage} for a notification that cannot be sent, because its `json` is not a JSON object or because its
/// command has no program.
void check_notification(const FollowerNotification& notification);

/// Announces that the target is at version `version`, with digest `digest`: runs the command, then posts to the URL.
/// Throws Error{kIo | kTimeout} if either fails; the caller must then repeat both. Calls stopped() regularly while the
/// command runs. If stopped() returns true, ends the command and throws kTimeout.
void notify(const FollowerNotification& notification, const StreamId& stream, std::uint64_t version,
            const StateDigest& digest, const std::function<bool()>& stopped);

/// Returns whether the notification has a command or a URL.
inline bool has_notification(const FollowerNotification& notification) {
  return !notification.command.empty() || !notification.url.empty();
}

/// A store that forwards all calls to another store, and counts the objects and the bytes that are read. An object that
/// is read in ranges counts once, when its first byte is read. Reads of missing objects do not count. The store can
/// cache one small object.
class MeteredStore : public ObjectStore {
 public:
  explicit MeteredStore(std::shared_ptr<ObjectStore> store) : store_(std::move(store)) {}

  /// Returns the number of objects that were read since the last reset().
  std::uint64_t objects() const noexcept { return objects_; }
  /// Returns the number of bytes that were read since the last reset().
  std::uint64_t bytes() const noexcept { return bytes_; }
  void reset() noexcept { objects_ = bytes_ = 0; }
  /// Caches the object with key `key`: get() stores the object that it next finds for this key, and returns the cached
  /// object for later calls with this key, until keep() is called again.
  void keep(const std::string& key) {
    const std::lock_guard lock(mutex_);
    kept_key_ = key;
    kept_.reset();
  }

  const std::string& location() const noexcept override { return store_->location(); }
  void put(const std::string& key, ConstBytes bytes) override { store_->put(key, bytes); }
  bool put_if_absent(const std::string& key, ConstBytes bytes) override { return store_->put_if_absent(key, bytes); }
  std::unique_ptr<ObjectUpload> upload(const std::string& key, std::uint64_t expected_bytes) override {
    return store_->upload(key, expected_bytes);
  }
  std::optional<Bytes> get(const std::string& key, std::uint64_t max_bytes) override {
    {
      const std::lock_guard lock(mutex_);
      if (key == kept_key_ && kept_ && kept_->size() <= max_bytes) return kept_;
    }
    std::optional<Bytes> found = store_->get(key, max_bytes);
    if (!found) return found;
    count(0, found->size());
    const std::lock_guard lock(mutex_);
    if (key == kept_key_) kept_ = found;
    return found;
  }
  std::optional<std::uint64_t> size(const std::string& key) override { return store_->size(key); }
  void get_range(const std::string& key, std::uint64_t offset, std::span<std::byte> buffer) override {
    store_->get_range(key, offset, buffer);
    count(offset, buffer.size());
  }
  std::vector<StoredObject> list(const std::string& prefix) override { return store_->list(prefix); }
  void remove(const std::string& key) override { store_->remove(key); }
  std::chrono::system_clock::time_point wall_now() override { return store_->wall_now(); }

 private:
  void count(std::uint64_t offset, std::uint64_t bytes) noexcept {
    if (offset == 0) ++objects_;
    bytes_ += bytes;
  }

  std::shared_ptr<ObjectStore> store_;
  std::atomic<std::uint64_t> objects_{0};
  std::atomic<std::uint64_t> bytes_{0};
  std::mutex mutex_;
  std::string kept_key_;
  std::optional<Bytes> kept_;
};

struct LogFollower::State {
  State(std::shared_ptr<ObjectStore> objects, FileSystem& file_system, std::string path,
        std::unique_ptr<FollowerTarget> followed, FollowerOptions follower_options);

  FollowReport step(std::optional<std::uint64_t> wanted);
  std::uint64_t look();

  // follower.cpp
  void start();
  void clean_scratch();
  void locate();
  void remember_start();
  void settle_notification();
  void keep_lease(std::uint64_t version, bool moves);
  void save();
  void note(const std::string& sentence) const;
  std::uint64_t goal_of(std::optional<std::uint64_t> wanted);

  // follower_catch_up.cpp
  void catch_up(std::uint64_t goal);
  CatchUpPath plan(std::uint64_t goal);
  void take(const CatchUpPath& path);
  void reseed(const AnchorRef& ref);
  void apply(const std::vector<DeltaRef>& deltas);
  std::size_t vouch(DeltaFetcher& fetcher, const std::vector<DeltaRef>& deltas, std::size_t i);
  void require_digest(const DeltaFile& delta, const DeltaRef& ref);
  void apply_one(const DeltaFile& delta);
  bool blames_object(const Error& error);

  const ProcessMark process;
  std::shared_ptr<MeteredStore> store;
  FileSystem& fs;
  const std::string state_path;
  const std::unique_ptr<FollowerTarget> target;
  const FollowerOptions options;
  const std::unique_ptr<LogReader> reader;
  std::optional<std::uint64_t> staged;  ///< Version that is being applied; nullopt when none is.

  /// Content of the state file, or what its content will be after the next save().
  std::optional<FollowerState> saved;
  bool started = false;  ///< True if the target has been recovered, and no error of the target has occurred since.
  std::optional<StateDigest> digest;  ///< Digest of the target's weights; nullopt while it is not known.
  /// Version and digest of the target; nullopt while its version is not known.
  std::optional<FollowerState::Position> position;
  /// Version up to which the log has been searched without finding the target's digest; nullopt if it was not searched.
  std::optional<std::uint64_t> searched;
  /// Newest commit of the log that the current step knows.
  LogCommit head;
  std::optional<LogMap> map;  ///< The paths through the log. Each step makes a new map.
  FollowReport report;

  std::string scratch;
  /// The object that is being applied. If applying fails, the error is blamed on this object.
  LogMap::ObjectId in_use;
  std::atomic<bool> stopping{false};

  std::mutex lease_mutex;
  std::optional<std::uint64_t> leased;
  std::chrono::steady_clock::time_point lease_renewed;
};

}  // namespace sparsecast
