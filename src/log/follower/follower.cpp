// SPDX-License-Identifier: Apache-2.0

// The reading end of a delta log. docs/following.md is the normative text.

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "core/file_tree.hpp"
#include "log/follower/checkpoint_place.hpp"
#include "log/follower/follower_parts.hpp"
#include "log/format/records.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

void FollowerTarget::require_replaceable(const Hash128&) {}
namespace {

constexpr std::chrono::milliseconds kSleepSlice{50};
constexpr const char* kFetchPrefix = "anchor-";

bool may_pass(ErrorCode code) {
  return code == ErrorCode::kIo || code == ErrorCode::kTimeout || code == ErrorCode::kGone ||
         code == ErrorCode::kIncomplete;
}

}  // namespace

LogFollower::State::State(std::shared_ptr<ObjectStore> objects, FileSystem& file_system, std::string path,
                          std::unique_ptr<FollowerTarget> followed, FollowerOptions follower_options)
    : store(std::make_shared<MeteredStore>(std::move(objects))),
      fs(file_system),
      state_path(std::move(path)),
      target(std::move(followed)),
      options(std::move(follower_options)),
      reader(std::make_unique<LogReader>(store, options.trust)) {
  check_notification(options.notify);
  saved = load_follower_state(fs, state_path);
  if (!saved || options.allow_rollback) return;
  if (options.trust.stream && !(*options.trust.stream == saved->seen.stream)) {
    throw Error(ErrorCode::kForeignStream, "it is of another stream than the one to be followed", state_path);
  }
  reader->remember(saved->seen);
}

void LogFollower::State::note(const std::string& sentence) const {
  if (options.note) options.note(sentence);
}

void LogFollower::State::save() {
  if (!saved) saved.emplace();
  if (options.allow_rollback || head.version >= saved->seen.version) saved->seen = head;
  saved->target = position;
  save_follower_state(fs, state_path, *saved);
}

void LogFollower::State::clean_scratch() {
  scratch = target->scratch_directory();
  for (const std::string& name : fs.list(scratch)) {
    if (name.starts_with(kSpoolPrefix) || name.starts_with(kFetchPrefix)) {
      remove_tree(fs, scratch + "/" + name);
    }
  }
  if (fs.is_directory(parent_directory(state_path))) remove_stale_state(fs, state_path);
}

/// Reads the state file and the target again, at the start and after every failure of the target.
void LogFollower::State::start() {
  if (started) return;
  position.reset();
  searched.reset();
  clean_scratch();
  digest = target->recover();
  if (digest && saved && saved->target && saved->target->digest == *digest && !options.allow_rollback) {
    position = saved->target;
  }
  started = true;
}

/// Finds the version of the target by its digest.
void LogFollower::State::locate() {
  if (position || !digest) return;
  map->load_catalog();
  std::optional<std::uint64_t> hint;
  if (saved && saved->target) hint = saved->target->version;
  if (const auto version = map->find(*digest, head.version, hint, searched)) {
    position = FollowerState::Position{*version, *digest};
  } else if (searched != head.version) {
    searched = head.version;
    note(fmt::format("the digest {} of the target is that of no version that was looked at", to_hex(digest->value)));
  }
}

/// Writes the state file before anything is changed, so that a delta applied later is known to be new.
void LogFollower::State::remember_start() {
  if (saved) return;
  saved.emplace();
  if (position) saved->notified = position->version;
  save();
}

void LogFollower::State::settle_notification() {
  if (!has_notification(options.notify) || !position || !saved || saved->notified == position->version) return;
  notify(options.notify, saved->seen.stream, position->version, position->digest, [this] { return stopping.load(); });
  saved->notified = position->version;
  save();
}

/// Writes the lease again when a third of its time is over, or to raise its version if `moves`.
void LogFollower::State::keep_lease(std::uint64_t version, bool moves) {
  if (options.lease.empty()) return;
  const std::lock_guard lock(lease_mutex);
  const auto now = fs.now();
  if (leased && now - lease_renewed < options.lease_time / 3 && (*leased == version || !moves)) return;
  LogLease lease;
  lease.stream = head.stream;
  lease.name = options.lease;
  lease.version = version;
  lease.renewed = std::chrono::duration_cast<std::chrono::milliseconds>(store->wall_now().time_since_epoch());
  lease.expires = lease.renewed + options.lease_time;
  store->put(lease_key(options.lease), pack(lease));
  leased = version;
  lease_renewed = now;
}

std::uint64_t LogFollower::State::goal_of(std::optional<std::uint64_t> wanted) {
  const std::uint64_t goal = wanted.value_or(head.version);
  if (goal > head.version) {
    throw Error(ErrorCode::kIncomplete, fmt::format("there is no version {} yet, the newest is {}", goal, head.version),
                store->location());
  }
  if (!position || position->version <= goal || options.allow_rollback) return goal;
  if (wanted) {
    throw Error(ErrorCode::kStaleVersion,
                fmt::format("version {} is older than version {}, which is here", goal, position->version),
                store->location());
  }
  throw Error(ErrorCode::kRolledBack,
              fmt::format("the newest version is {}, but version {} is here", head.version, position->version),
              store->location());
}

FollowReport LogFollower::State::step(std::optional<std::uint64_t> wanted) {
  store->reset();
  store->keep(kCatalogKey);  // The search for the head also reads the catalog, for its hint.
  report = {};
  map.reset();
  start();
  settle_notification();
  const std::optional<LogCommit> newest = reader->head();
  if (!newest) throw Error(ErrorCode::kIncomplete, "there is no log here yet", store->location());
  head = *newest;
  map.emplace(*reader, options.merged, options.every_version, options.object_cost_bytes);
  map->add(head);
  if (saved && !(saved->seen.stream == head.stream) && !options.allow_rollback) {
    throw Error(ErrorCode::kReplayed,
                fmt::format("the log is of stream {}, not {}", to_hex(head.stream), to_hex(saved->seen.stream)),
                store->location());
  }
  locate();
  remember_start();
  settle_notification();
  const std::uint64_t goal = goal_of(wanted);
  if (!position || position->version != goal) catch_up(goal);
  if (position) {
    keep_lease(position->version, true);
    report.version = position->version;
  }
  if (!stopping) settle_notification();  // Otherwise the next start sends it.
  report.head = head.version;
  report.objects_read = store->objects();
  report.bytes_read = store->bytes();
  return report;
}

std::uint64_t LogFollower::State::look() {
  const std::optional<LogCommit> newest = reader->head();
  if (!newest) throw Error(ErrorCode::kIncomplete, "there is no log here yet", store->location());
  return newest->version;
}

LogFollower::LogFollower(std::shared_ptr<ObjectStore> store, FileSystem& fs, std::string state_path,
                         std::unique_ptr<FollowerTarget> target, FollowerOptions options)
    : state_(std::make_unique<State>(std::move(store), fs, std::move(state_path), std::move(target),
                                     std::move(options))) {}

LogFollower::~LogFollower() {
  if (!state_->process.is_here())
    static_cast<void>(state_.release());  // In a forked child, the connections belong to the parent.
}

FollowReport LogFollower::step(std::optional<std::uint64_t> version) {
  state_->process.require_here(state_->state_path);
  return state_->step(version);
}

void LogFollower::follow(std::chrono::milliseconds interval, const std::function<void(const FollowReport&)>& reported) {
  state_->process.require_here(state_->state_path);
  while (!state_->stopping) {
    try {
      const FollowReport report = state_->step(std::nullopt);
      if (reported && (report.applied > 0 || report.reseeded)) reported(report);
    } catch (const Error& error) {
      if (!may_pass(error.code())) throw;
      state_->note(fmt::format("{}; trying again", error.what()));
    }
    for (auto left = interval; left.count() > 0 && !state_->stopping; left -= kSleepSlice) {
      std::this_thread::sleep_for(std::min(left, kSleepSlice));
    }
  }
}

void LogFollower::stop() noexcept { state_->stopping = true; }

std::optional<std::uint64_t> LogFollower::version() const noexcept {
  if (!state_->position) return std::nullopt;
  return state_->position->version;
}

std::optional<std::uint64_t> LogFollower::staged() const noexcept { return state_->staged; }

std::uint64_t LogFollower::look() {
  state_->process.require_here(state_->state_path);
  return state_->look();
}

}  // namespace sparsecast
