// SPDX-License-Identifier: Apache-2.0

// Engines that join, leave, die in the middle of a sync, or are cut anew; and ranks that do not hear a decision.

#include "sharded_scenes.hpp"
#include "shared_counter.hpp"
#include "support/forwarding_control.hpp"

namespace sparsecast::mpi_test {
namespace {

using namespace std::chrono_literals;

/// A rank's control channel with something before, or after, its votes since arm(): the first is whether all have
/// staged, the second the decision.
class WatchedControl final : public test::ForwardingControl {
 public:
  using ForwardingControl::ForwardingControl;
  void arm(std::function<void(int vote)> before, std::function<void(int vote)> after) {
    before_ = std::move(before);
    after_ = std::move(after);
    votes_ = 0;
  }

  int agree(int status, int coordinator, Deadline deadline) override {
    ++votes_;
    if (before_) before_(votes_);
    const int worst = ForwardingControl::agree(status, coordinator, deadline);
    if (after_) after_(votes_);
    return worst;
  }

 private:
  std::function<void(int)> before_;
  std::function<void(int)> after_;
  int votes_ = 0;
};

/// Four trainer ranks, engine a on rank 4, engine b on rank 5.
ShardedScene two_engines() {
  const auto engine = dense_engine(1, 2, 300);
  return {{"trainer", dense_fsdp(4, 2, 300), range_of_ranks(0, 4)}, {{"a", engine, {4}}, {"b", engine, {5}}}};
}

void late_engine(Case& running) {
  ShardedMember member(running, two_engines());
  const bool late = member.in_engine("b");
  const SubWorld before(!late);
  const SubWorld all(true);
  if (late) {
    member.forget();
    member.follow(7);
  } else {
    running.expect_success(member.regroup(before), "regroup without the late engine");
    member.run(7);
  }
  running.expect_success(member.regroup(all), "regroup with it");
  member.expect_version(7);
  member.run(kShardedVersions - 7);

  // It leaves again, and the others go on.
  if (late) return;
  running.expect_success(member.regroup(before), "regroup after it has left");
  member.run(3);
}
const Registration kLate{"sharded_late_engine", late_engine};

/// Engine b's rank dies before its `vote` of the sync to version 8; 0: before it begins.
void lose_engine(Case& running, int vote) {
  running.ends_by_abort();
  SharedCounter finished;
  ShardedMember member(running, two_engines());
  const bool dead = member.in_engine("b");
  const SubWorld all(true);
  const SubWorld survivors(!dead);
  std::shared_ptr<WatchedControl> control;
  const auto watch = [&](std::shared_ptr<ControlChannel> inner) {
    return control = std::make_shared<WatchedControl>(std::move(inner));
  };
  running.expect_success(member.regroup(all, watch), "regroup");
  member.run(7);
  member.train();
  if (dead) {
    control->arm(
        [&](int now) {
          if (now != vote) return;
          finished.wait_for(running.size() - 1);
          throw Error(ErrorCode::kUsage, "this rank was dead");
        },
        nullptr);
    if (vote == 0) {
      finished.wait_for(running.size() - 1);
    } else {
      running.expect_error(member.sync(2s), ErrorCode::kUsage, "was dead", "the dead rank's sync");
    }
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  const Outcome outcome = member.sync(2s);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  running.note(fmt::format("after {:.3f} s of 2: {}", seconds, outcome.text()));
  running.expect(outcome.error.has_value(), "the sync fails");
  running.expect(seconds < 30, "by its deadline");
  running.expect_equal(member.version(), 7U, "the version that is claimed");
  running.expect_error(member.sync(2s), ErrorCode::kPeerFailed, "broken", "sync of the broken group");
  running.expect_success(member.regroup(survivors), "regroup of the survivors");
  // The step that could not be brought to them is in the next delta.
  member.run(kShardedVersions - 8, 1);
  finished.add_one();
}

void dead_engine(Case& running) { lose_engine(running, 0); }
const Registration kDead{"sharded_dead_engine", dead_engine};
void dead_engine_after_staging(Case& running) { lose_engine(running, 1); }
const Registration kDeadAfterStaging{"sharded_dead_engine_after_staging", dead_engine_after_staging};
void dead_engine_after_proof(Case& running) { lose_engine(running, 2); }
const Registration kDeadAfterProof{"sharded_dead_engine_after_proof", dead_engine_after_proof};

/// The decision for version 4 reaches all but two ranks, a trainer's and an engine's.
void unheard_decision(Case& running) {
  running.ends_by_abort();
  ShardedMember member(running, two_engines());
  const bool deaf = running.rank() == 3 || running.rank() == 5;
  const SubWorld all(true);
  std::shared_ptr<WatchedControl> control;
  const auto watch = [&](std::shared_ptr<ControlChannel> inner) {
    return control = std::make_shared<WatchedControl>(std::move(inner));
  };
  running.expect_success(member.regroup(all, watch), "regroup");
  member.run(3);
  member.train();
  control->arm(nullptr, [&](int vote) {
    if (deaf && vote == 2) throw Error(ErrorCode::kTimeout, "the decision was lost");
  });
  const Outcome outcome = member.sync();
  if (deaf) {
    running.expect_error(outcome, ErrorCode::kTimeout, "whether version 4 was committed is not known", "sync");
    running.expect_equal(member.version(), 3U, "the version that it claims");
  } else {
    running.expect_success(outcome, "sync");
  }
  const SubWorld again(true);
  running.expect_success(member.regroup(again), "regroup");
  member.expect_version(4);
  member.run(kShardedVersions - 4);
}
const Registration kUnheard{"sharded_unheard_decision", unheard_decision};

/// More places: the first experts again.
std::vector<std::uint32_t> padded_to(std::vector<std::uint32_t> places, std::size_t count) {
  for (std::uint32_t e = 0; places.size() < count; ++e) places.push_back(e);
  return places;
}

/// Redundant experts, and places that change: the engine moves the contents itself, or has to be seeded.
void moved_experts(Case& running) {
  const auto in_order = experts_engine(4, experts_in_order());
  ShardedMember member(
      running, {{"trainer", experts_megatron(1), range_of_ranks(0, 2)}, {{"engine", in_order, range_of_ranks(2, 4)}}});
  const SubWorld all(true);
  running.expect_success(member.regroup(all), "regroup");
  member.run(7);

  std::vector<std::uint32_t> places = experts_in_order();
  std::reverse(places.begin(), places.end());
  places.insert(places.begin(), {3, 3, 5, 0});  // Expert 3 twice on one rank.
  const auto moved = experts_engine(4, places);
  if (member.serves()) member.cut_anew(moved, 7);
  running.expect_success(member.regroup(all), "regroup of experts that were moved");
  member.expect_version(7);
  member.run(7);

  if (member.serves()) member.cut_anew(in_order, 0);  // What lies there is version 0's.
  const Outcome outcome = member.regroup(all, nullptr, 20s);
  if (member.serves()) {
    running.expect(outcome.error.has_value(), "bytes of another version are found out");
    member.forget();
  } else {
    running.expect_error(outcome, ErrorCode::kPeerFailed, "engine 'engine' rank", "regroup names the engine's rank");
  }
  const SubWorld again(true);
  running.expect_success(member.regroup(again), "regroup of an engine that is seeded");
  member.expect_version(14);
  member.run(kShardedVersions - 14);
}
const Registration kMoved{"sharded_moved_experts", moved_experts};

/// Two engines that place their experts differently, and too few channels: each gets routes of its own, so the trainer
/// sends, and keeps, the same elements twice. Then one is seeded by such a trainer.
void two_placements(Case& running) {
  const std::vector<std::uint32_t> in_order = experts_in_order();
  std::vector<std::uint32_t> shuffled;
  for (std::uint32_t i = 0; i < kSceneExperts; ++i) shuffled.push_back((5 * i + 3) % kSceneExperts);
  ShardedScene scene{{"trainer", experts_megatron(1), range_of_ranks(0, 2)},
                     {{"a", experts_engine(3, padded_to(in_order, 18)), range_of_ranks(2, 3)},
                      {"b", experts_engine(3, padded_to(shuffled, 18)), range_of_ranks(5, 3)}}};
  scene.options.plan.max_groups_per_rank = 2;
  scene.options.plan.route_cost_bytes = 0;
  ShardedMember member(running, scene);
  const SubWorld all(true);
  running.expect_success(member.regroup(all), "regroup");
  running.note(fmt::format("{} routes, {} channels", member.plan().routes().size(), member.plan().groups().size()));
  member.run(7);
  if (member.in_engine("b")) member.forget();
  running.expect_success(member.regroup(all), "regroup of an engine that is seeded");
  member.expect_version(7);
  member.run(kShardedVersions - 7);
}
const Registration kPlacements{"sharded_two_placements", two_placements};

}  // namespace
}  // namespace sparsecast::mpi_test
