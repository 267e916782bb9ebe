#pragma once

// The inside of LogFollower. follower.cpp: start, step, notification, lease; follower_catch_up.cpp: from here to there.

#include <mutex>

#include "log/delta_fetcher.hpp"
#include "log/follower_state.hpp"
#include "log/log_map.hpp"
#include "log/metered_store.hpp"
#include "log/notify.hpp"
#include "sparsecast/log_follower.hpp"

namespace sparsecast {

struct LogFollower::State {
  using Position = FollowerState::Position;

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
  void say(const std::string& sentence) const;
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

  std::shared_ptr<MeteredStore> store;
  FileSystem& fs;
  const std::string state_path;
  const std::unique_ptr<FollowerTarget> target;
  const FollowerOptions options;
  std::unique_ptr<LogReader> reader;

  std::optional<FollowerState> saved;     ///< What the state file holds, or will next.
  bool started = false;                   ///< The target has been recovered, and nothing has gone wrong with it since.
  std::optional<StateDigest> digest;      ///< Of the target.
  std::optional<Position> position;       ///< The same, when its version is known.
  std::optional<std::uint64_t> searched;  ///< No version up to this one has the digest.
  LogCommit head;
  std::optional<LogMap> map;  ///< Of the step.
  FollowReport report;

  std::string scratch;
  LogMap::Named in_use;  ///< The object that is being worked on: whose fault an error would be.
  std::atomic<bool> stopping{false};

  std::mutex lease_mutex;
  std::optional<std::uint64_t> leased;
  std::chrono::steady_clock::time_point lease_renewed;
};

}  // namespace sparsecast
