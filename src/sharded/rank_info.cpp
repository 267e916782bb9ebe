// SPDX-License-Identifier: Apache-2.0

// Every rank sends its roles, and gets those of all ranks in one message. Then each layout is sent once, by the first
// rank that has it. Then all ranks derive the same groups, and find the same errors in them.

#include "sharded/rank_info.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include <nlohmann/json.hpp>

#include "sparsecast/error.hpp"
#include "transport/control/blobs.hpp"

namespace sparsecast {

namespace {

/// Maximum bytes of a serialized layout. A layout of 1000 ranks with 10^5 shards takes a few hundred kilobytes.
constexpr std::uint64_t kMostLayoutBytes = std::uint64_t{1} << 28;

std::string describe(const RankInfo& rank_info) {
  return rank_info.role == Role::kTrainer ? fmt::format("trainer rank {}", rank_info.rank)
                                          : fmt::format("engine '{}' rank {}", rank_info.group, rank_info.rank);
}

/// A rank of the world in one of its roles.
struct Attendant {
  int world_rank = 0;
  RankInfo rank_info;
};
using GroupMembers = std::vector<const Attendant*>;

[[noreturn]] void refuse_missing(RankInfo like, std::uint32_t rank) {
  like.rank = rank;
  throw Error(ErrorCode::kGroupMismatch, "this rank is not in the world", describe(like));
}

/// Returns the display name of each world rank, for error messages.
std::vector<std::string> name_ranks(const std::vector<Attendant>& all, std::size_t size) {
  std::vector<std::string> names(size);
  const auto add = [&](Role role) {
    for (const Attendant& attendant : all) {
      if (attendant.rank_info.role != role) continue;
      std::string& name = names[static_cast<std::size_t>(attendant.world_rank)];
      name += (name.empty() ? "" : " and ") + describe(attendant.rank_info);
    }
  };
  add(Role::kTrainer);
  add(Role::kEngine);
  for (std::size_t r = 0; r < size; ++r) {
    if (names[r].empty()) names[r] = fmt::format("world rank {}", r);
  }
  return names;
}

/// Returns the members of each participant, in order of their first rank in the world; rank 0 of a participant comes
/// first.
std::vector<GroupMembers> find_groups(const std::vector<Attendant>& all) {
  std::vector<GroupMembers> groups;
  std::map<std::pair<Role, std::string>, std::size_t> known;
  for (const Attendant& attendant : all) {
    const auto [place, added] =
        known.emplace(std::pair(attendant.rank_info.role, attendant.rank_info.group), groups.size());
    if (added) groups.emplace_back();
    groups[place->second].push_back(&attendant);
  }
  for (GroupMembers& members : groups) {
    const auto first = std::ranges::find(members, 0U, [](const Attendant* a) { return a->rank_info.rank; });
    if (first == members.end()) refuse_missing(members.front()->rank_info, 0);
    std::iter_swap(first, members.begin());
  }
  return groups;
}

/// Returns the bytes of one provider on every rank; they are sent in pieces that fit the control channel.
Bytes collect(ControlChannel& world, int provider, std::uint64_t size, ConstBytes own, Deadline deadline) {
  Bytes out;
  const std::uint64_t piece = std::max<std::uint64_t>(world.max_blob_bytes(), 1);
  while (out.size() < size) {
    const std::size_t count = static_cast<std::size_t>(std::min<std::uint64_t>(piece, size - out.size()));
    const ConstBytes part = world.rank() == provider ? own.subspan(out.size(), count) : ConstBytes{};
    const Bytes arrived = world.reduce(part, concatenate, deadline);
    if (arrived.size() != count) {
      throw Error(ErrorCode::kCorrupt, fmt::format("{} bytes of a layout came where {} belong", arrived.size(), count),
                  fmt::format("rank {}", provider));
    }
    out.insert(out.end(), arrived.begin(), arrived.end());
  }
  return out;
}

using Layouts = std::vector<std::shared_ptr<const Layout>>;

std::shared_ptr<const Layout> find_in(const Layouts& list, const Hash128& hash) {
  const auto found = std::ranges::find(list, hash, [](const auto& layout) { return layout->hash(); });
  return found == list.end() ? nullptr : *found;
}

/// Serializes the layouts that this rank provides, those of the participants whose rank 0 it is, and sets their sizes
/// in `own`.
std::map<Role, Bytes> pack_layouts(std::vector<RankInfo>& own, const Layouts& layouts) {
  std::map<Role, Bytes> packed;
  for (RankInfo& rank_info : own) {
    if (rank_info.rank != 0) continue;
    Bytes& bytes = packed[rank_info.role];
    bytes = find_in(layouts, rank_info.layout)->serialize();
    rank_info.layout_bytes = bytes.size();
  }
  return packed;
}

/// Returns the layout of each participant; a layout that several participants share is sent once.
Layouts exchange_layouts(ControlChannel& world, const std::vector<GroupMembers>& groups, const Layouts& known,
                         const std::map<Role, Bytes>& packed, Deadline deadline) {
  Layouts layouts;
  for (const GroupMembers& members : groups) {
    const RankInfo& first = members.front()->rank_info;
    if (auto before = find_in(layouts, first.layout)) {
      layouts.push_back(std::move(before));
      continue;
    }
    if (first.layout_bytes > kMostLayoutBytes) {
      throw Error(ErrorCode::kGroupMismatch, fmt::format("a layout of {} bytes", first.layout_bytes), describe(first));
    }
    std::shared_ptr<const Layout> layout = find_in(known, first.layout);
    const int provider = members.front()->world_rank;
    const ConstBytes own = provider == world.rank() ? ConstBytes(packed.at(first.role)) : ConstBytes{};
    const Bytes bytes = collect(world, provider, first.layout_bytes, own, deadline);
    if (!layout) layout = std::make_shared<const Layout>(Layout::parse(bytes));
    if (layout->hash() != first.layout) {
      throw Error(ErrorCode::kCorrupt, "its layout is another than it said", describe(first));
    }
    layouts.push_back(std::move(layout));
  }
  return layouts;
}

/// Returns the participant of these ranks, after checking that they are complete and agree.
MeetingParticipant make_participant(const GroupMembers& members, std::shared_ptr<const Layout> layout) {
  const RankInfo& first = members.front()->rank_info;
  const std::size_t size = layout->ranks().size();
  MeetingParticipant participant;
  participant.participant = {first.group, std::move(layout), std::vector<int>(size, -1)};
  for (const Attendant* const member : members) {
    const RankInfo& rank_info = member->rank_info;
    if (rank_info.layout != first.layout && rank_info.next_layout != first.layout) {
      throw Error(ErrorCode::kGroupMismatch, fmt::format("its layout is not that of {}", describe(first)),
                  describe(rank_info));
    }
    if (rank_info.rank >= size) {
      throw Error(ErrorCode::kGroupMismatch, fmt::format("the layout has {} ranks", size), describe(rank_info));
    }
    int& place = participant.participant.ranks[rank_info.rank];
    if (place >= 0) {
      throw Error(ErrorCode::kGroupMismatch,
                  fmt::format("world ranks {} and {} both are it", place, member->world_rank), describe(rank_info));
    }
    place = member->world_rank;
  }
  for (std::size_t i = 0; i < size; ++i) {
    if (participant.participant.ranks[i] < 0) refuse_missing(first, static_cast<std::uint32_t>(i));
  }
  return participant;
}

/// Returns true when the rank holds `version`, once the coordinator has settled the rank's version in doubt.
bool holds(const RankInfo& rank_info, std::uint64_t version) {
  return rank_info.version == version || (rank_info.in_doubt != 0 && rank_info.in_doubt == version);
}

}  // namespace

bool Meeting::needs_anchor(int world_rank) const {
  return std::ranges::any_of(engines, [&](const MeetingParticipant& engine) {
    return engine.needs_anchor &&
           std::ranges::find(engine.participant.ranks, world_rank) != engine.participant.ranks.end();
  });
}

Meeting meet(ControlChannel& world, std::vector<RankInfo> own, const Layouts& layouts, Deadline deadline) {
  const std::map<Role, Bytes> packed = pack_layouts(own, layouts);
  std::vector<Attendant> all;
  const auto size = static_cast<std::size_t>(world.size());
  std::vector<std::vector<RankInfo>> said =
      parse_joined_roles(world.reduce(pack_roles(own), join_roles, deadline), size, "the rank infos of all ranks");
  for (std::size_t r = 0; r < size; ++r) {
    for (RankInfo& rank_info : said[r]) all.push_back({static_cast<int>(r), std::move(rank_info)});
  }
  const std::vector<GroupMembers> groups = find_groups(all);
  const Layouts of_groups = exchange_layouts(world, groups, layouts, packed, deadline);

  Meeting meeting;
  meeting.names = name_ranks(all, size);
  const GroupMembers* trainer = nullptr;
  for (const Attendant& attendant : all) {
    const RankInfo& rank_info = attendant.rank_info;
    meeting.last_attempt =
        std::max({meeting.last_attempt, rank_info.last_attempt, rank_info.version, rank_info.in_doubt});
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].front()->rank_info.role == Role::kEngine) continue;
    if (trainer != nullptr) throw Error(ErrorCode::kGroupMismatch, "there are two trainers in the world");
    trainer = &groups[g];
    meeting.trainer = make_participant(groups[g], of_groups[g]);
  }
  if (trainer == nullptr) throw Error(ErrorCode::kGroupMismatch, "there is no trainer in the world");
  const RankInfo& coordinator = trainer->front()->rank_info;
  meeting.coordinator = trainer->front()->world_rank;
  meeting.version = coordinator.version;
  meeting.plan = coordinator.plan;
  for (const Attendant* const member : *trainer) {
    const RankInfo& rank_info = member->rank_info;
    if (holds(rank_info, meeting.version)) continue;
    throw Error(ErrorCode::kGroupMismatch,
                fmt::format("it is at version {}, and trainer rank 0 at {}", rank_info.version, meeting.version),
                describe(rank_info));
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (&groups[g] == trainer) continue;
    MeetingParticipant engine = make_participant(groups[g], of_groups[g]);
    for (const Attendant* const member : groups[g]) {
      engine.needs_anchor =
          engine.needs_anchor || member->rank_info.needs_anchor || !holds(member->rank_info, meeting.version);
    }
    meeting.engines.push_back(std::move(engine));
  }
  return meeting;
}

namespace {

constexpr int kFormat = 1;

/// Consecutive ranks of the world, whose rank numbers in each role are consecutive too.
struct Run {
  std::uint64_t ranks = 1;
  std::vector<RankInfo> roles;  ///< Roles of the first rank.
};

Hash128 hash_from(const nlohmann::json& words) {
  return {words.at(0).get<std::uint64_t>(), words.at(1).get<std::uint64_t>()};
}

nlohmann::json to_json(const RankInfo& rank_info) {
  return {{"trainer", rank_info.role == Role::kTrainer},
          {"group", rank_info.group},
          {"rank", rank_info.rank},
          {"layout", {rank_info.layout.lo, rank_info.layout.hi}},
          {"next_layout", {rank_info.next_layout.lo, rank_info.next_layout.hi}},
          {"layout_bytes", rank_info.layout_bytes},
          {"version", rank_info.version},
          {"in_doubt", rank_info.in_doubt},
          {"last_attempt", rank_info.last_attempt},
          {"needs_anchor", rank_info.needs_anchor},
          {"max_groups", rank_info.plan.max_groups_per_rank},
          {"route_cost", rank_info.plan.route_cost_bytes},
          {"unsent", rank_info.plan.unsent}};
}

RankInfo from_json(const nlohmann::json& object) {
  RankInfo rank_info;
  rank_info.role = object.at("trainer").get<bool>() ? Role::kTrainer : Role::kEngine;
  rank_info.group = object.at("group").get<std::string>();
  rank_info.rank = object.at("rank").get<std::uint32_t>();
  rank_info.layout = hash_from(object.at("layout"));
  rank_info.next_layout = hash_from(object.at("next_layout"));
  rank_info.layout_bytes = object.at("layout_bytes").get<std::uint64_t>();
  rank_info.version = object.at("version").get<std::uint64_t>();
  rank_info.in_doubt = object.at("in_doubt").get<std::uint64_t>();
  rank_info.last_attempt = object.at("last_attempt").get<std::uint64_t>();
  rank_info.needs_anchor = object.at("needs_anchor").get<bool>();
  rank_info.plan.max_groups_per_rank = object.at("max_groups").get<std::size_t>();
  rank_info.plan.route_cost_bytes = object.at("route_cost").get<std::uint64_t>();
  rank_info.plan.unsent = object.at("unsent").get<std::vector<std::string>>();
  return rank_info;
}

nlohmann::json to_json(const std::vector<RankInfo>& roles) {
  nlohmann::json list = nlohmann::json::array();
  for (const RankInfo& rank_info : roles) list.push_back(to_json(rank_info));
  return list;
}

/// Returns the roles of the rank that comes `count` ranks after the one of `roles` in its run.
std::vector<RankInfo> advanced(std::vector<RankInfo> roles, std::uint64_t count) {
  for (RankInfo& rank_info : roles) rank_info.rank += static_cast<std::uint32_t>(count);
  return roles;
}

Bytes pack_runs(const std::vector<Run>& runs) {
  nlohmann::json list = nlohmann::json::array();
  for (const Run& run : runs) list.push_back({{"ranks", run.ranks}, {"roles", to_json(run.roles)}});
  const std::vector<std::uint8_t> packed = nlohmann::json::to_cbor({{"format", kFormat}, {"runs", list}});
  const auto* const begin = reinterpret_cast<const std::byte*>(packed.data());
  return {begin, begin + packed.size()};
}

std::vector<Run> parse_runs(ConstBytes bytes, const std::string& peer) {
  try {
    const auto* const begin = reinterpret_cast<const std::uint8_t*>(bytes.data());
    const nlohmann::json object = nlohmann::json::from_cbor(begin, begin + bytes.size());
    if (object.at("format").get<int>() != kFormat) {
      throw Error(ErrorCode::kGroupMismatch, "it speaks another version of the meeting", peer);
    }
    std::vector<Run> runs;
    for (const nlohmann::json& item : object.at("runs")) {
      Run& run = runs.emplace_back();
      run.ranks = item.at("ranks").get<std::uint64_t>();
      for (const nlohmann::json& role : item.at("roles")) run.roles.push_back(from_json(role));
    }
    return runs;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kCorrupt, fmt::format("what it says of itself cannot be read: {}", error.what()), peer);
  }
}

}  // namespace

void RankInfo::set_layouts(const Layout& current, const Layout* next) {
  layout = current.hash();
  if (next != nullptr) next_layout = next->hash();
}

Bytes pack_roles(const std::vector<RankInfo>& roles) { return pack_runs({{1, roles}}); }

std::vector<RankInfo> parse_roles(ConstBytes bytes, const std::string& peer) {
  return std::move(parse_joined_roles(bytes, 1, peer).front());
}

Bytes join_roles(const std::vector<Bytes>& packed) {
  std::vector<Run> runs;
  for (std::size_t r = 0; r < packed.size(); ++r) {
    std::vector<RankInfo> roles = parse_roles(packed[r], fmt::format("world rank {}", r));
    if (!runs.empty() && to_json(roles) == to_json(advanced(runs.back().roles, runs.back().ranks))) {
      ++runs.back().ranks;
    } else {
      runs.push_back({1, std::move(roles)});
    }
  }
  return pack_runs(runs);
}

std::vector<std::vector<RankInfo>> parse_joined_roles(ConstBytes bytes, std::size_t ranks, const std::string& peer) {
  std::vector<std::vector<RankInfo>> all;
  const auto require_ranks = [&](bool right) {
    if (!right) throw Error(ErrorCode::kCorrupt, fmt::format("what it says is not of {} ranks", ranks), peer);
  };
  for (const Run& run : parse_runs(bytes, peer)) {
    require_ranks(run.ranks > 0 && run.ranks <= ranks - all.size());
    for (std::uint64_t i = 0; i < run.ranks; ++i) all.push_back(advanced(run.roles, i));
  }
  require_ranks(all.size() == ranks);
  return all;
}

}  // namespace sparsecast
