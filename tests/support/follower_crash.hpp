// SPDX-License-Identifier: Apache-2.0
#pragma once

// Power loss at every operation of a follower, and whether the next start restores a version (docs/architecture.md, I1
// to I4, I6). Failures are sentences, which callers report.

#include <map>
#include <string>
#include <vector>

#include "checkpoint/undo_record.hpp"
#include "log/follower/follower_state.hpp"
#include "support/follow_scene.hpp"

namespace sparsecast::test {

struct CrashCounts {
  std::uint64_t points = 0;
  std::uint64_t states = 0;
  std::uint64_t undone = 0;   ///< States with an undo record.
  std::uint64_t between = 0;  ///< States without a checkpoint, between two renames.
  std::vector<std::string> failures;

  CrashCounts& operator+=(const CrashCounts& other) {
    points += other.points;
    states += other.states;
    undone += other.undone;
    between += other.between;
    failures.insert(failures.end(), other.failures.begin(), other.failures.end());
    return *this;
  }
};

/// Work of the follower during the power loss.
enum class CrashScenario { kSingleDeltas, kMergedDelta, kReseed, kFirstAnchor, kReseedWithUndo };
inline constexpr CrashScenario kCrashScenarios[] = {CrashScenario::kSingleDeltas, CrashScenario::kMergedDelta,
                                                    CrashScenario::kReseed, CrashScenario::kFirstAnchor,
                                                    CrashScenario::kReseedWithUndo};
inline const char* name_of(CrashScenario scenario) {
  switch (scenario) {
    case CrashScenario::kSingleDeltas:
      return "single deltas";
    case CrashScenario::kMergedDelta:
      return "a merged delta and a single one";
    case CrashScenario::kReseed:
      return "an anchor over a gap";
    case CrashScenario::kFirstAnchor:
      return "an anchor where nothing was";
    default:
      return "an anchor over an interrupted apply";
  }
}

class FollowerCrash {
 public:
  FollowerCrash(const FollowedCheckpoint& how, CrashScenario scenario, std::uint64_t seed)
      : how_(how), scenario_(scenario), scene_(seed) {
    disk_.make_directory("/d");
    disk_.sync_directory("/");
    if (scenario != CrashScenario::kFirstAnchor) {
      scene_.publish_to(2);
      how_.put(disk_, scene_.model().checkpoint(0));
      how_.follower(scene_, disk_).step();
      first_ = 2;
    }
    if (scenario == CrashScenario::kReseedWithUndo) interrupt();
    scene_.publish_to(scenario == CrashScenario::kSingleDeltas ? 4 : 7);
    if (scenario == CrashScenario::kMergedDelta) scene_.add_merged(2, 6);
    if (scenario_ >= CrashScenario::kReseed) {
      scene_.add_anchor(6);
      if (scenario != CrashScenario::kFirstAnchor) scene_.collect(6);
    }
    newest_ = scene_.head();
  }

  std::uint64_t operations() {
    const auto fs = disk_.durable_state();
    run(*fs);
    return fs->operations();
  }

  /// Crashes at operation `point`; looks at the harshest state and `luck` random ones.
  CrashCounts crash_at(std::uint64_t point, std::uint64_t luck, Random& random) {
    CrashCounts counts;
    counts.points = 1;
    const auto fs = disk_.durable_state();
    fs->crash_at(point);
    try {
      run(*fs);
    } catch (const CrashException&) {
    }
    check(*fs->durable_state(), where(*fs, point, "durable state"), counts);
    for (std::uint64_t i = 0; i < luck; ++i) {
      const std::uint64_t seed = random.next();
      const std::string place = where(*fs, point, "seed " + std::to_string(seed));
      check(*fs->crash_state(seed), place, counts);
      // The power goes again while the next life puts things right.
      const auto again = fs->crash_state(seed);
      again->crash_at(random.below(120));
      try {
        run(*again);
      } catch (const CrashException&) {
      }
      check(*again->crash_state(random.next()), place + ", and again in the next life", counts);
    }
    return counts;
  }

 private:
  void run(FaultFileSystem& fs) { how_.follower(scene_, fs).step(); }

  std::string where(const FaultFileSystem& fs, std::uint64_t point, const std::string& state) const {
    const auto log = fs.log();
    const std::string operation = point < log.size() ? log[point].name + ' ' + log[point].path : "the end";
    return std::string(how_.name) + ", " + name_of(scenario_) + ": crash at operation " + std::to_string(point) + " (" +
           operation + "), " + state;
  }

  /// Leaves an undo record that leads nowhere: the file has been damaged since.
  void interrupt() {
    scene_.publish_to(3);
    for (std::uint64_t point = 0;; ++point) {
      const auto fs = disk_.durable_state();
      fs->crash_at(point);
      try {
        run(*fs);
        return;  // No undo record is ever written by copies.
      } catch (const CrashException&) {
      }
      auto after = fs->durable_state();
      if (!after->exists(undo_record_path(*after, how_.path))) continue;
      const std::string file = how_.directory() ? std::string(how_.path) + "/model.safetensors" : how_.path;
      std::string bytes = *after->content(file);
      bytes.back() = static_cast<char>(bytes.back() ^ 0x40);
      for (const std::string& path : after->files()) disk_.put_file(path, *after->content(path));
      disk_.put_file(file, bytes);
      return;
    }
  }

  bool has_undo(FaultFileSystem& fs) const { return fs.exists(undo_record_path(fs, how_.path)); }

  std::optional<std::uint64_t> version_of(FaultFileSystem& fs) {
    try {
      return scene_.version_of(fs, how_.path, newest_);
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  void check(FaultFileSystem& fs, const std::string& place, CrashCounts& counts) {
    ++counts.states;
    const auto fail = [&](const std::string& what) { counts.failures.push_back(place + ": " + what); };
    look(fs, counts, fail);
    try {
      const std::optional<std::uint64_t> believed = believed_version(fs);
      LogFollower follower = how_.follower(scene_, fs);
      const FollowReport report = follower.step();
      if (report.version != newest_) fail("the next life reports version " + std::to_string(report.version));
      if (believed && *believed > report.version) fail("it went back");
    } catch (const Error& error) {
      fail(std::string("the next life fails: ") + error.what());
      return;
    }
    expect_newest(fs, "after the next life", fail);
    // A reported version stays on the disk, whatever happens next.
    expect_newest(*fs.durable_state(), "after the next life and a power loss", fail);
    // The note of the table comes last: a crash before it leaves it to the next change.
    std::vector<std::string> left = fs.list(std::string(how_.path) + ".follow");
    std::erase(left, "table");
    if (left != std::vector<std::string>{"state"}) fail("something is left over");
  }

  /// Checks what an engine would load: a version, or an error.
  template <class Fail>
  void look(FaultFileSystem& fs, CrashCounts& counts, const Fail& fail) {
    if (has_undo(fs)) {
      ++counts.undone;
      return;
    }
    const bool weights = fs.exists(how_.directory() ? std::string(how_.path) + "/model.safetensors" : how_.path);
    if (!weights) {
      ++counts.between;
      const bool replaces = scenario_ == CrashScenario::kFirstAnchor || how_.directory();
      if (!replaces || fs.exists(how_.path)) fail("there is no checkpoint");
      return;
    }
    const auto version = version_of(fs);
    if (!version) {
      fail("the checkpoint is of no version, and nothing says so");
    } else if (*version < first_) {
      fail("the checkpoint went back");
    }
  }

  std::optional<std::uint64_t> believed_version(FaultFileSystem& fs) const {
    const auto state = load_follower_state(fs, how_.state_path());
    if (!state || !state->target) return std::nullopt;
    return state->target->version;
  }

  template <class Fail>
  void expect_newest(FaultFileSystem& fs, const char* when, const Fail& fail) {
    if (has_undo(fs)) fail(std::string(when) + ": an undo record is there");
    if (version_of(fs) != newest_) fail(std::string(when) + ": the checkpoint is not the newest version");
    if (how_.directory() && scenario_ != CrashScenario::kFirstAnchor &&
        !fs.exists(std::string(how_.path) + "/config.json")) {
      fail(std::string(when) + ": the engine's configuration is lost");
    }
  }

  const FollowedCheckpoint& how_;
  const CrashScenario scenario_;
  FollowScene scene_;
  FaultFileSystem disk_;
  std::uint64_t first_ = 0;
  std::uint64_t newest_ = 0;
};

}  // namespace sparsecast::test
