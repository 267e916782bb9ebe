// SPDX-License-Identifier: Apache-2.0
#include "support/log_crash.hpp"

#include <cerrno>
#include <map>
#include <stdexcept>

#include "log/format/records.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::test {
namespace {

constexpr std::uint64_t kSteps = 24;
constexpr const char* kLog = "data/log";
constexpr const char* kScratch = "data/scratch";
constexpr const char* kCheckpoint = "data/checkpoint.safetensors";

const std::shared_ptr<const SigningKey>& own_key() {
  static const auto key = SigningKey::generate();
  return key;
}

LogTrust pinned() {
  LogTrust trust;
  trust.pinned = {own_key()->public_key()};
  return trust;
}

LogWriterOptions small_spans() {
  LogWriterOptions options;
  options.key = own_key();
  options.merge_spans = {2, 4};
  options.anchor_file_bytes = 300;
  return options;
}

RetentionPolicy short_retention() {
  RetentionPolicy policy;
  policy.keep_versions = 1;
  return policy;
}

void put_lease(LogWorld& world, std::uint64_t version) {
  LogLease lease;
  lease.stream = world.scene().stream();
  lease.name = "reader";
  lease.version = version;
  lease.renewed = std::chrono::duration_cast<std::chrono::milliseconds>(world.fs().wall_now().time_since_epoch());
  lease.expires = lease.renewed + std::chrono::hours(1);
  world.reader().store().put(lease_key(lease.name), pack(lease));
}

void require_kept(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

/// Everything that has to hold of a log, whatever happened; ends with two more versions than it had.
void recover(FaultFileSystem& fs, LogScene& scene, const LogScenario& scenario,
             const std::optional<LogCommit>& promised, std::uint64_t before, CrashCount& count) {
  LogWorld world(fs, scene);
  if (promised) world.reader().remember(*promised);  // I6: what was seen is never rolled back.
  std::optional<LogCommit> head = world.reader().head();
  if (!head) {
    require_kept(!promised, "the log is gone");
    world.create();
    head = world.reader().head();
  }
  require_kept(!promised || head->version >= promised->version, "a promised version is gone");
  require_kept(head->version >= before && head->version <= before + scenario.versions, "a version that nobody wrote");
  count.advanced += head->version > before ? 1 : 0;
  const LogVerifyReport report = verify_log(open_directory_store(fs, kLog), pinned(), fs, kScratch);
  require_kept(report.problem_count == 0, report.problem_count == 0 ? "" : report.problems.front().message);
  world.take_over();
  world.publish_until(head->version + 2);
  require_kept(world.reader().head()->version == head->version + 2, "publishing does not go on");
}

/// A copy of a file system of which everything is durable.
std::unique_ptr<FaultFileSystem> copy_of(const FaultFileSystem& fs) { return fs.durable_state(); }

std::unique_ptr<FaultFileSystem> prepared(const LogScenario& scenario, LogScene& scene, std::uint64_t& before) {
  FaultFileSystem fs;
  fs.put_file("data/scratch/keep", "");
  fs.put_file(kCheckpoint, "");
  LogWorld world(fs, scene);
  scenario.prepare(world);
  const std::optional<LogCommit> head = world.reader().head();
  before = head ? head->version : 0;
  return copy_of(fs);
}

class Enumeration {
 public:
  Enumeration(const LogScenario& scenario, const CrashSettings& settings)
      : scenario_(scenario), settings_(settings), start_(prepared(scenario, scene_, before_)) {}

  CrashCount run() {
    for (std::uint64_t call = 0; crash_at(call); ++call) ++count_.operations;
    return count_;
  }

 private:
  /// False when the operation ended before that call.
  bool crash_at(std::uint64_t call) {
    const std::unique_ptr<FaultFileSystem> fs = copy_of(*start_);
    LogWorld world(*fs, scene_);
    if (scenario_.lead) scenario_.lead(world);
    fs->reset_log();
    fs->crash_at(call);
    bool crashed = false;
    try {
      scenario_.act(world);
    } catch (const CrashException&) {
      crashed = true;
    }
    for (std::uint64_t seed = settings_.first_seed; seed < settings_.first_seed + settings_.seeds; ++seed) {
      const std::string where = scenario_.name + ", call " + std::to_string(call) + ", seed " + std::to_string(seed);
      try {
        check(seed == 0 ? fs->durable_state() : fs->crash_state(call * 1'000'000 + seed), world.promised());
      } catch (const std::exception& error) {
        throw std::runtime_error(where + ": " + error.what());
      }
      ++count_.states;
      if (!crashed) break;
    }
    return crashed;
  }

  void check(std::unique_ptr<FaultFileSystem> state, const std::optional<LogCommit>& promised) {
    if (settings_.second != 0 && (count_.states % settings_.second) == 0) {
      state = crash_recovery(std::move(state), promised);
      ++count_.second_crashes;
    }
    LogScenario lenient = scenario_;
    lenient.versions += 2;  // Of the takeover and the publication that a second crash may have cut short.
    if (scenario_.lead) lenient.versions += 1;
    recover(*state, scene_, lenient, promised, before_, count_);
  }

  std::unique_ptr<FaultFileSystem> crash_recovery(std::unique_ptr<FaultFileSystem> state,
                                                  const std::optional<LogCommit>& promised) {
    Random random(count_.states * 1000 + settings_.first_seed);
    state->reset_log();
    state->crash_at(random.below(400));
    CrashCount ignored;
    LogScenario lenient = scenario_;
    lenient.versions += 1;
    try {
      recover(*state, scene_, lenient, promised, before_, ignored);
    } catch (const CrashException&) {
    }
    return state->crash_state(random.next());
  }

  const LogScenario& scenario_;
  CrashSettings settings_;
  LogScene scene_;
  std::uint64_t before_ = 0;
  std::unique_ptr<FaultFileSystem> start_;
  CrashCount count_;
};

}  // namespace

LogWorld::LogWorld(FaultFileSystem& fs, LogScene& scene)
    : fs_(fs), scene_(scene), reader_(open_directory_store(fs, kLog), pinned()), writer_(reader_, small_spans()) {}

std::uint64_t LogWorld::step_of(const StateDigest& digest) {
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    if (scene_.digest(step) == digest) return step;
  }
  throw std::runtime_error("a state that no step of the model has");
}

void LogWorld::create() { promised_ = writer_.create(scene_.creation()); }

void LogWorld::take_over() {
  const LogCommit head = *reader_.head();
  promised_ = writer_.take_over(scene_.table(), head.digest);
}

void LogWorld::publish_until(std::uint64_t last) {
  while (writer_.head().version < last) {
    const std::uint64_t version = writer_.head().version + 1;
    const std::uint64_t step = step_of(writer_.head().digest) + 1;
    const Bytes delta = scene_.delta(step - 1, step, version);
    promised_ = writer_.publish(DeltaFile::over(delta, "delta"));
  }
}

void LogWorld::write_anchor(std::uint64_t version) {
  const std::uint64_t step = step_of(reader_.commit(version)->digest);
  fs_.put_file(kCheckpoint, scene_.checkpoint(step));
  writer_.write_anchor(fs_, kCheckpoint, version);
}

const std::vector<LogScenario>& log_scenarios() {
  static const auto grow = [](std::uint64_t versions) {
    return [versions](LogWorld& world) {
      world.create();
      world.publish_until(versions);
    };
  };
  static const auto lead = [](LogWorld& world) { world.take_over(); };
  static const auto with_anchors = [](LogWorld& world) {
    world.create();
    world.publish_until(6);
    world.write_anchor(2);
    world.write_anchor(5);
    world.writer().compact(world.fs(), kScratch);
    put_lease(world, 3);
  };
  static const std::vector<LogScenario> scenarios{
      {"create", [](LogWorld&) {}, {}, [](LogWorld& world) { world.create(); }, 1},
      {"take_over", grow(2), {}, [](LogWorld& world) { world.take_over(); }, 1},
      {"publish", grow(1), lead, [](LogWorld& world) { world.publish_until(3); }, 1},
      {"publish three", grow(1), lead, [](LogWorld& world) { world.publish_until(5); }, 3},
      {"write_anchor", grow(3), {}, [](LogWorld& world) { world.write_anchor(3); }, 0},
      {"compact", grow(4), {}, [](LogWorld& world) { world.writer().compact(world.fs(), kScratch); }, 0},
      {"gc", with_anchors, {}, [](LogWorld& world) { world.writer().gc(short_retention()); }, 0},
      {"gc without leases",
       [](LogWorld& world) {
         with_anchors(world);
         world.reader().store().remove(lease_key("reader"));
       },
       {},
       [](LogWorld& world) { world.writer().gc(short_retention()); },
       0},
      {"set_keys", grow(2), lead,
       [](LogWorld& world) {
         static const auto other = SigningKey::generate();
         world.writer().set_keys({own_key()->public_key(), other->public_key()});
       },
       1},
  };
  return scenarios;
}

CrashCount enumerate_crashes(const LogScenario& scenario, const CrashSettings& settings) {
  return Enumeration(scenario, settings).run();
}

namespace {

struct Failure {
  int error;
  bool short_write;
  bool for_ever;
};

/// False when the operation ended before that call.
bool fail_at(const LogScenario& scenario, LogScene& scene, const FaultFileSystem& start, std::uint64_t before,
             std::uint64_t call, const Failure& failure) {
  const std::unique_ptr<FaultFileSystem> fs = copy_of(start);
  LogWorld world(*fs, scene);
  if (scenario.lead) scenario.lead(world);
  fs->reset_log();
  if (failure.short_write) {
    fs->short_write_at(call, failure.error);
  } else {
    fs->fail_at(call, failure.error,
                failure.for_ever ? FaultFileSystem::Repeat::kForEver : FaultFileSystem::Repeat::kOnce);
  }
  try {
    scenario.act(world);
  } catch (const Error& error) {
    require_kept(!error.context().empty(), std::string("an error without a path: ") + error.what());
    fs->clear_fault();
    scenario.act(world);
  }
  const bool reached = fs->operations() > call;
  fs->clear_fault();
  CrashCount ignored;
  LogScenario lenient = scenario;
  if (scenario.lead) lenient.versions += 1;
  recover(*fs, scene, lenient, world.promised(), before, ignored);
  return reached;
}

}  // namespace

std::uint64_t enumerate_failures(const LogScenario& scenario, std::uint64_t stride) {
  LogScene scene;
  std::uint64_t before = 0;
  const std::unique_ptr<FaultFileSystem> start = prepared(scenario, scene, before);
  std::uint64_t tried = 0;
  for (const Failure& failure :
       {Failure{EIO, false, false}, {ENOSPC, false, false}, {ENOSPC, true, false}, {EIO, false, true}}) {
    for (std::uint64_t call = 0;; call += stride) {
      try {
        if (!fail_at(scenario, scene, *start, before, call, failure)) break;
      } catch (const std::exception& error) {
        throw std::runtime_error(scenario.name + ", call " + std::to_string(call) + ", errno " +
                                 std::to_string(failure.error) + (failure.for_ever ? " for ever" : "") + ": " +
                                 error.what());
      }
      ++tried;
    }
  }
  return tried;
}

}  // namespace sparsecast::test
