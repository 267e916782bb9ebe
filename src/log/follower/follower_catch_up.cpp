// SPDX-License-Identifier: Apache-2.0

// Brings the target from its version to another version: plans, fetches, checks against commits, and applies.
//
// A delta is applied only if it is known to lead to the digest of a commit. This is the commit of the delta's target
// version, or, to save reading it, that of a later version, if all deltas up to there are on the disk and join. So the
// target always reaches a version of the log, even if the catalog or an object is wrong.

#include <fmt/format.h>

#include "core/file_tree.hpp"
#include "log/follower/checkpoint_place.hpp"
#include "log/follower/follower_parts.hpp"
#include "log/format/log_keys.hpp"
#include "log/format/records.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

constexpr int kMostPlans = 8;

/// Returns whether the error is due to an object or to the target, so that another path may work.
bool has_another_way(ErrorCode code) {
  switch (code) {
    case ErrorCode::kGone:
    case ErrorCode::kMixed:
    case ErrorCode::kCorrupt:
    case ErrorCode::kUnsupported:
    case ErrorCode::kTableMismatch:
    case ErrorCode::kForeignStream:
    case ErrorCode::kVersionGap:
    case ErrorCode::kWrongBase:
    case ErrorCode::kDigestMismatch:
    case ErrorCode::kDirty:
      return true;
    default:
      return false;
  }
}

void remove_quietly(FileSystem& fs, const std::string& directory) noexcept {
  try {
    if (fs.exists(directory)) remove_tree(fs, directory);
  } catch (...) {  // Remains in the scratch directory, which is cleaned at the next start.
  }
}

class PhaseTimer {
 public:
  explicit PhaseTimer(double& seconds) : seconds_(seconds) {}
  ~PhaseTimer() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count(); }
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

/// Names the version that is being applied, while the object exists.
class Staged {
 public:
  Staged(std::optional<std::uint64_t>& staged, std::uint64_t version) : staged_(staged) { staged_ = version; }
  ~Staged() { staged_.reset(); }
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;

 private:
  std::optional<std::uint64_t>& staged_;
};

}  // namespace

/// Writes the lease before it reads the floor (docs/delta-log.md, "Retention"). The objects that the path needs are
/// then either kept, or known to be gone.
CatchUpPath LogFollower::State::plan(std::uint64_t goal) {
  const bool back = position && position->version > goal;
  std::optional<std::uint64_t> from;
  if (position && !back) from = position->version;
  if (from) {
    keep_lease(*from, true);
  } else if (const auto guess = map->path(from, goal); guess && guess->anchor) {
    keep_lease(guess->anchor->version, true);
  }
  map->set_floor(reader->floor());
  auto path = map->path(from, goal);
  if (!path) {
    throw Error(ErrorCode::kGone,
                from ? fmt::format("nothing that is kept leads from version {} to {}, and no anchor from {} on", *from,
                                   goal, *from)
                     : fmt::format("no anchor leads to version {}", goal),
                store->location());
  }
  if (path->anchor) keep_lease(path->anchor->version, !leased || *leased > path->anchor->version);
  return *path;
}

void LogFollower::State::catch_up(std::uint64_t goal) {
  std::optional<Error> first;
  for (int plans = 1;; ++plans) {
    std::optional<CatchUpPath> path;
    try {
      map->require_digest(goal);
      if (plans > 1) store->keep(kCatalogKey);
      map->load_catalog(plans > 1);
      path = plan(goal);
    } catch (const Error& error) {
      if (first && error.code() == ErrorCode::kGone) throw *first;
      throw;
    }
    try {
      take(*path);
      return;
    } catch (const Error& error) {
      const bool blamed = blames_object(error);
      if (!has_another_way(error.code()) || plans == kMostPlans) throw;
      if (blamed) map->avoid(in_use);
      if (!first) first = error;
      // A catalog may name more missing objects than there are attempts; the last attempt does without its deltas.
      if (plans + 1 == kMostPlans) map->plan_by_commits();
      note(fmt::format("{}; looking for another way to version {}", error.what(), goal));
    }
  }
}

/// After an error, brings the target back to a version. Returns whether it is the version from before, so that the
/// object is to blame. Leaves to the next start what cannot be settled now.
bool LogFollower::State::blames_object(const Error& error) {
  if (started) return true;  // The target was not involved in the error.
  const std::optional<FollowerState::Position> before = position;
  const std::optional<StateDigest> digest_before = digest;
  if (!has_another_way(error.code())) {
    position.reset();
    return false;
  }
  start();
  if (digest == digest_before) {
    position = before;
    return true;
  }
  locate();
  return false;
}

void LogFollower::State::take(const CatchUpPath& path) {
  in_use = {};
  if (path.anchor) reseed(*path.anchor);
  if (!path.deltas.empty()) apply(path.deltas);
}

void LogFollower::State::reseed(const AnchorRef& ref) {
  in_use = {ref.record_hash, ref.bytes};
  const LogAnchor anchor = reader->anchor(ref);
  const std::optional<LogCommit> commit = reader->commit(ref.version);
  if (!commit || anchor.version != ref.version || !(anchor.commit == commit->record_hash) ||
      !(anchor.digest == commit->digest)) {
    throw Error(ErrorCode::kMixed, fmt::format("it is not the anchor of version {}", ref.version),
                anchor_directory(ref));
  }
  map->add(*commit);
  target->require_replaceable(commit->table_hash);
  const std::string directory = fmt::format("{}/anchor-{}", scratch, ref.version);
  if (fs.exists(directory)) remove_tree(fs, directory);
  fs.make_directory(directory);
  {
    const PhaseTimer timer(report.fetch_seconds);
    reader->fetch_anchor(anchor, fs, directory, [&](std::uint64_t done, std::uint64_t total) {
      keep_lease(ref.version, false);
      if (options.progress) options.progress("fetching anchor", done, total);
    });
  }
  note(fmt::format("the anchor of version {} replaces what is here", ref.version));
  const PhaseTimer timer(report.apply_seconds);
  const Staged applied(staged, ref.version);
  started = false;
  try {
    target->reseed(directory, ref.version, anchor.digest);
  } catch (...) {
    remove_quietly(fs, directory);
    throw;
  }
  remove_quietly(fs, directory);
  started = true;
  digest = anchor.digest;
  position = FollowerState::Position{ref.version, anchor.digest};
  report.reseeded = true;
  save();
  if (options.every_version) settle_notification();
}

void LogFollower::State::require_digest(const DeltaFile& delta, const DeltaRef& ref) {
  if (!(delta.commit().result_digest == map->require_digest(ref.to))) {
    throw Error(ErrorCode::kMixed,
                fmt::format("it leads to digest {}, and version {} has {}", to_hex(delta.commit().result_digest.value),
                            ref.to, to_hex(map->require_digest(ref.to).value)),
                delta_key(ref));
  }
}

/// Checks deltas from `i` on against commits. Returns the index of the first delta that is not checked yet.
std::size_t LogFollower::State::vouch(DeltaFetcher& fetcher, const std::vector<DeltaRef>& deltas, std::size_t i) {
  std::size_t last = i;
  while (last + 1 < deltas.size() && !map->digest_of(deltas[last].to)) ++last;
  std::size_t end = fetcher.fits(i, last) ? last + 1 : i + 1;
  bool join = true;
  StateDigest reached = position->digest;
  for (std::size_t k = i; k < end; ++k) {
    in_use = {deltas[k].hash, deltas[k].bytes};
    try {
      const DeltaFile& delta = fetcher.open(k);
      join = join && delta.header().base_digest == reached;
      reached = delta.commit().result_digest;
    } catch (const Error&) {
      if (k == i) throw;
      end = k;  // Deltas before it may be good; open() throws the error again when it is the turn of delta k.
    }
  }
  if (join && map->digest_of(deltas[end - 1].to) == reached) return end;

  reached = position->digest;
  for (std::size_t k = i; k < end; ++k) {
    in_use = {deltas[k].hash, deltas[k].bytes};
    const DeltaFile& delta = fetcher.open(k);
    if (!(delta.header().base_digest == reached)) {
      throw Error(ErrorCode::kMixed,
                  fmt::format("it starts from digest {}, and version {} has {}",
                              to_hex(delta.header().base_digest.value), deltas[k].from, to_hex(reached.value)),
                  delta_key(deltas[k]));
    }
    require_digest(delta, deltas[k]);
    reached = delta.commit().result_digest;
  }
  return end;
}

void LogFollower::State::apply(const std::vector<DeltaRef>& deltas) {
  DeltaFetcher fetcher(*reader, fs, scratch, deltas, {options.read_ahead_bytes, options.fetch_threads},
                       options.progress);
  std::size_t vouched = 0;
  for (std::size_t i = 0; i < deltas.size() && !stopping; ++i) {
    if (i >= vouched) vouched = vouch(fetcher, deltas, i);
    in_use = {deltas[i].hash, deltas[i].bytes};
    const DeltaFile& delta = fetcher.open(i);
    if (!(delta.header().stream == head.stream)) {
      throw Error(ErrorCode::kForeignStream, "it is of another stream than the log", delta_key(deltas[i]));
    }
    apply_one(delta);
    fetcher.release(i);
    save();
    ++report.applied;
    keep_lease(position->version, false);
    if (options.every_version) settle_notification();
  }
  report.fetch_seconds += fetcher.seconds_waited();
}

void LogFollower::State::apply_one(const DeltaFile& delta) {
  const PhaseTimer timer(report.apply_seconds);
  const Staged applied(staged, delta.header().version);
  started = false;  // Stays false unless the change succeeds.
  target->apply(delta);
  started = true;
  digest = delta.commit().result_digest;
  position = FollowerState::Position{delta.header().version, *digest};
}

}  // namespace sparsecast
