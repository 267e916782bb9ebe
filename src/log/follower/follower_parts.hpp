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

/// Throws Error{kUsage} for a notification that cannot be sent: `json` is no object, or no program is named.
void check_notification(const FollowerNotification& notification);

/// Runs the command, then posts to the URL. Throws Error{kIo | kTimeout}; the caller must then repeat both. Calls
/// stopped() regularly: when it returns true, ends the command and throws kTimeout.
void notify(const FollowerNotification& notification, const StreamId& stream, std::uint64_t version,
            const StateDigest& digest, const std::function<bool()>& stopped);

/// Returns whether a command or a URL is configured.
inline bool has_notification(const FollowerNotification& notification) {
  return !notification.command.empty() || !notification.url.empty();
}

/// Forwards all calls to a store and counts the objects and bytes read. An object read in ranges counts once, when its
/// first byte is read; reads that find nothing do not count. Can cache one small object between two reads in a step.
class MeteredStore : public ObjectStore {
 public:
  explicit MeteredStore(std::shared_ptr<ObjectStore> store) : store_(std::move(store)) {}

  std::uint64_t objects() const noexcept { return objects_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  void reset() noexcept { objects_ = bytes_ = 0; }
  /// Caches the next object that is read under `key` for later reads, until the next call of keep().
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
      if (key == kept_key_ && kept_) return kept_;
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
  std::unique_ptr<LogReader> reader;

  std::optional<FollowerState> saved;  ///< Content of the state file, or its next content.
  bool started = false;                ///< The target has been recovered, and nothing has gone wrong with it since.
  std::optional<StateDigest> digest;   ///< Digest of the target, once it is known.
  std::optional<FollowerState::Position> position;  ///< Version and digest of the target, if its version is known.
  std::optional<std::uint64_t> searched;            ///< No version up to this one has the target's digest.
  LogCommit head;
  std::optional<LogMap> map;  ///< Map of the log, rebuilt by each step.
  FollowReport report;

  std::string scratch;
  LogMap::ObjectId in_use;  ///< The object in use, which is to blame for an error.
  std::atomic<bool> stopping{false};

  std::mutex lease_mutex;
  std::optional<std::uint64_t> leased;
  std::chrono::steady_clock::time_point lease_renewed;
};

}  // namespace sparsecast
