// SPDX-License-Identifier: Apache-2.0
#include "control_plane/world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "sparsecast/error.hpp"
#include "sparsecast/layout.hpp"
#include "transport/control/blobs.hpp"
#include "transport/control/star_group.hpp"

namespace sparsecast::bench {
namespace {

constexpr std::uint64_t kHidden = 4096;
constexpr std::uint64_t kAgreePart = 8;       ///< Status and coordinator.
constexpr std::uint64_t kAgreeResult = 4;     ///< The decision.
constexpr std::uint64_t kPlanHash = 16;       ///< Of one rank.
constexpr std::uint64_t kPlanHashes = 24;     ///< Whether all are equal.
constexpr std::uint64_t kNcclRankInfo = 936;  ///< sizeof(NcclRankInfo), src/transport/nccl/formation.hpp.
constexpr std::uint64_t kNcclUniqueId = 128;  ///< NCCL_UNIQUE_ID_BYTES, nccl.h.
constexpr std::uint64_t kFormation = 32;      ///< A packed FormationPlan without its roots.
constexpr int kRanksPerRoot = 128;            ///< Of a communicator with several unique ids.
constexpr std::uint64_t kInvitation = 98;     ///< Host, port and secret of a part of a group, from its leader.

// What a split sent when every rank named its host, and every rank an invitation.
constexpr std::uint64_t kOldChoice = 72;
constexpr std::uint64_t kOldInvitation = 34;

/// Returns processor seconds of a call in this thread: the least of three calls, so that memory is warm.
template <class Call>
double seconds_of(const Call& call) {
  double least = 1e9;
  for (int i = 0; i < 3; ++i) {
    const double start = thread_seconds();
    call();
    least = std::min(least, thread_seconds() - start);
  }
  return least;
}

std::shared_ptr<const Layout> make_layout(int ranks, int tensors, const Cut& cut) {
  LayoutBuilder builder({Mesh{{"x", static_cast<std::uint32_t>(ranks)}}});
  for (int t = 0; t < tensors; ++t) {
    const std::string name = fmt::format("model.layers.{}.weight.{}", t / 10, t % 10);
    builder.tensor({name, DType::kBF16, {kHidden, kHidden}});
    builder.add(name, {name}, cut);
  }
  return std::make_shared<const Layout>(builder.build());
}

Participant participant_of(std::string name, std::shared_ptr<const Layout> layout, int first, int size) {
  Participant participant{std::move(name), std::move(layout), std::vector<int>(static_cast<std::size_t>(size))};
  std::iota(participant.ranks.begin(), participant.ranks.end(), first);
  return participant;
}

std::uint64_t total(const std::vector<std::uint64_t>& parts) {
  return std::accumulate(parts.begin(), parts.end(), std::uint64_t{0});
}

/// Returns bytes of join_blobs: each part and its size.
std::uint64_t gathered_of(const std::vector<std::uint64_t>& parts) { return total(parts) + 8 * parts.size(); }

std::vector<std::uint64_t> sizes_of(const std::vector<Bytes>& packed) {
  std::vector<std::uint64_t> sizes;
  for (const Bytes& bytes : packed) sizes.push_back(bytes.size());
  return sizes;
}

/// Returns a step in which every rank gives as many bytes; `gathered` and `reduced` are what each gets.
Step even_step(std::string name, int ranks, std::uint64_t part, std::uint64_t reduced) {
  Step step{std::move(name), std::vector<std::uint64_t>(static_cast<std::size_t>(ranks), part)};
  step.gathered = gathered_of(step.parts);
  step.reduced = reduced;
  return step;
}

Step agree_step(std::string name, int ranks) {
  Step step = even_step(std::move(name), ranks, kAgreePart, kAgreeResult);
  step.gathered = kAgreeResult;
  return step;
}

Step rank_infos_step(const World& world) {
  std::vector<Bytes> packed;
  for (const RankInfo& rank_info : world.rank_infos) packed.push_back(pack_roles({rank_info}));
  Step step{"rank infos", sizes_of(packed)};
  step.gathered = gathered_of(step.parts);
  Bytes joined;
  step.combine_seconds = seconds_of([&] { joined = join_roles(packed); });
  step.reduced = joined.size();
  step.read_seconds = seconds_of([&] { parse_joined_roles(joined, packed.size(), "all"); });
  step.all_seconds = seconds_of([&] {
    for (const Bytes& bytes : packed) parse_roles(bytes, "a rank");
  });
  return step;
}

Step votes_step(const World& world) {
  std::vector<Bytes> packed;
  for (int r = 0; r < world.size(); ++r) packed.push_back(pack_vote(world.vote_of(r)));
  Step step{"votes", sizes_of(packed)};
  step.gathered = gathered_of(step.parts);
  Bytes count;
  step.combine_seconds = seconds_of([&] { count = count_votes(voters_of(world.meeting), packed); });
  step.reduced = count.size();
  step.read_seconds = seconds_of([&] { read_count(count); });
  step.all_seconds = step.combine_seconds;
  return step;
}

Step layout_step(std::string name, const World& world, int provider, const Layout& layout) {
  Step step = even_step(std::move(name), world.size(), 0, 0);
  const Bytes bytes = layout.serialize();
  step.parts[static_cast<std::size_t>(provider)] = bytes.size();
  step.gathered = gathered_of(step.parts);
  step.reduced = bytes.size();
  step.read_seconds = seconds_of([&] { Layout::parse(bytes); });
  step.all_seconds = step.read_seconds;
  return step;
}

}  // namespace

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

World::World(int ranks, int engines, int tensors) {
  if (ranks < 3 || engines < 1) throw Error(ErrorCode::kUsage, fmt::format("{} ranks, {} engines", ranks, engines));
  const int receivers = ranks / 3;
  const int count = std::min(engines, receivers);
  const int engine_size = receivers / count;
  const int trainers = ranks - count * engine_size;
  trainer_layout = make_layout(trainers, tensors, Cut::fsdp2({"x"}));
  engine_layout = make_layout(engine_size, tensors, Cut::dtensor({{1, {"x"}}}));
  const auto add = [this](Role role, const Participant& group) {
    for (std::size_t r = 0; r < group.ranks.size(); ++r) {
      RankInfo& rank_info = rank_infos.emplace_back();
      rank_info.role = role;
      rank_info.group = group.name;
      rank_info.rank = static_cast<std::uint32_t>(r);
      rank_info.set_layouts(*group.layout, nullptr);
      meeting.names.push_back(fmt::format("{} rank {}", group.name, r));
    }
  };
  meeting.trainer.participant = participant_of("trainer", trainer_layout, 0, trainers);
  add(Role::kTrainer, meeting.trainer.participant);
  for (int e = 0; e < count; ++e) {
    MeetingParticipant& engine = meeting.engines.emplace_back();
    engine.participant = participant_of(fmt::format("http://10.0.{}.1:30000", e), engine_layout,
                                        trainers + e * engine_size, engine_size);
    add(Role::kEngine, engine.participant);
  }
}

const std::shared_ptr<const Layout>& World::layout_of(int rank) const {
  return rank_infos[static_cast<std::size_t>(rank)].role == Role::kTrainer ? trainer_layout : engine_layout;
}

Vote World::vote_of(int rank) const {
  Vote vote;
  if (rank_infos[static_cast<std::size_t>(rank)].role == Role::kEngine) {
    vote.reached.value.lo = static_cast<std::uint64_t>(rank);
    return vote;
  }
  vote.promised.resize(meeting.engines.size() + 1);
  if (rank != 0) return vote;
  for (std::size_t e = 0; e < meeting.engines.size(); ++e) {
    for (const int r : meeting.engines[e].participant.ranks) {
      vote.promised[e].value.lo += static_cast<std::uint64_t>(r);
    }
  }
  return vote;
}

std::vector<Step> steps_of_regroup(const World& world) {
  const int ranks = world.size();
  const int first_engine_rank = world.meeting.engines.front().participant.ranks.front();
  std::vector<Step> steps;
  steps.push_back(rank_infos_step(world));
  steps.push_back(layout_step("trainer's layout", world, 0, *world.trainer_layout));
  steps.push_back(layout_step("engines' layout", world, first_engine_rank, *world.engine_layout));
  steps.push_back(even_step("plan hashes", ranks, kPlanHash, kPlanHashes));
  // A channel of its own for NCCL's world.
  steps.push_back(even_step("split: colors", ranks, sizeof(SplitChoice), 0));
  steps.back().reduced = total(steps.back().parts);
  steps.back().gathered = static_cast<std::uint64_t>(ranks) * (8 + kOldChoice);
  Step& invitations = steps.emplace_back(even_step("split: invitations", ranks, 0, 0));
  invitations.parts[0] = kInvitation;
  invitations.reduced = kInvitation;
  invitations.gathered = static_cast<std::uint64_t>(ranks) * (8 + kOldInvitation);
  const std::uint64_t roots =
      ranks >= 2 * kRanksPerRoot ? static_cast<std::uint64_t>(ranks) / kRanksPerRoot : std::uint64_t{1};
  steps.push_back(even_step("NCCL: rank infos", ranks, kNcclRankInfo, kFormation + 4 * roots));
  Step& ids = steps.emplace_back(even_step("NCCL: unique ids", ranks, 0, kNcclUniqueId * roots));
  for (std::uint64_t i = 0; i < roots; ++i) ids.parts[static_cast<std::size_t>(i * kRanksPerRoot)] = kNcclUniqueId;
  ids.gathered = gathered_of(ids.parts);
  steps.push_back(agree_step("NCCL: registered", ranks));
  steps.push_back(votes_step(world));
  steps.push_back(agree_step("decision", ranks));
  return steps;
}

std::vector<Step> steps_of_sync(const World& world) {
  std::vector<Step> steps;
  steps.push_back(agree_step("staged", world.size()));
  steps.push_back(votes_step(world));
  steps.push_back(agree_step("decision", world.size()));
  return steps;
}

}  // namespace sparsecast::bench
