// SPDX-License-Identifier: Apache-2.0
#pragma once

// Exchange of roles between the ranks of a trainer and its engines: the first step of every regroup.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sparsecast/control_channel.hpp"
#include "sparsecast/fanout_plan.hpp"

namespace sparsecast {

enum class Role : std::uint8_t { kTrainer, kEngine };

/// Message of a rank about itself in one role, trainer or engine. meet() sends it to all ranks.
struct RankInfo {
  Role role = Role::kEngine;
  std::string group;  ///< Name of the engine, or "trainer".
  std::uint32_t rank = 0;
  Hash128 layout;  ///< Hash of the layout that the rank holds. The layout of rank 0 is the layout of its group.
  /// Hash of the layout of a proposed plan; zero: none. It replaces `layout` if rank 0 of the group has already adopted
  /// that plan.
  Hash128 next_layout;
  std::uint64_t layout_bytes = 0;  ///< Size of the serialized layout in bytes; set by meet() on rank 0 of a group.
  std::uint64_t version = 0;       ///< Version that this rank has verified.
  std::uint64_t in_doubt = 0;      ///< Version for which this rank voted without receiving the decision; 0: none.
  std::uint64_t last_attempt = 0;  ///< Highest version number of any attempt that this rank knows of.
  bool needs_anchor = false;
  PlanOptions plan;  ///< Options of the plan; only the options of the trainer's rank 0 are used.

  /// Sets `layout` and `next_layout` to the hashes of these layouts. If `next` is null, leaves `next_layout` as it is.
  void set_layouts(const Layout& current, const Layout* next);
};

/// Returns the roles of a rank, one or two, as bytes.
Bytes pack_roles(const std::vector<RankInfo>& roles);
/// Returns the roles in `bytes`, the output of pack_roles() on the rank named `peer`. Throws Error{kCorrupt} that names
/// this rank, or Error{kGroupMismatch} for another version of the format.
std::vector<RankInfo> parse_roles(ConstBytes bytes, const std::string& peer);
/// Joins `packed`, the outputs of pack_roles() of all ranks in the order of ranks, into one message. Consecutive ranks
/// that differ only in their rank numbers, which go up by one, are stored once, so the size grows with the number of
/// groups. Throws as parse_roles() does, naming the rank of the wrong output.
Bytes join_roles(const std::vector<Bytes>& packed);
/// Returns the roles of each of `ranks` ranks from `bytes`, the output of join_roles(). Throws as parse_roles() does;
/// errors name `peer`.
std::vector<std::vector<RankInfo>> parse_joined_roles(ConstBytes bytes, std::size_t ranks, const std::string& peer);

/// A participant of the regroup: the trainer, or an engine.
struct MeetingParticipant {
  Participant participant;
  bool needs_anchor = false;
};

/// Facts about the trainer and the engines that all ranks of the world know, and agree on, after meet().
struct Meeting {
  MeetingParticipant trainer;
  std::vector<MeetingParticipant> engines;  ///< The engines, in the order of their first rank in the world.
  PlanOptions plan;
  int coordinator = 0;             ///< World rank of the trainer's rank 0, which takes the decisions.
  std::uint64_t version = 0;       ///< Version that the coordinator has committed last.
  std::uint64_t last_attempt = 0;  ///< Highest version number of any attempt that a rank of this world knows of.
  std::vector<std::string> names;  ///< Display name of each world rank.

  /// Returns true when the engine that this world rank belongs to needs an anchor.
  bool needs_anchor(int world_rank) const;
  /// Returns the name of a world rank, such as "engine 'b' rank 3", "trainer rank 0" or "trainer rank 0 and engine 'b'
  /// rank 3".
  const std::string& name_of(int world_rank) const { return names[static_cast<std::size_t>(world_rank)]; }
};

/// Exchanges the rank infos and the layouts of all ranks, and returns what all ranks then know. Collective over
/// `world`. `own` are the roles of this rank. `layouts` are the current and the next layouts of these roles, so that
/// this rank need not parse them again. A layout that several groups share is sent once. Throws Error{kGroupMismatch}
/// that names the ranks concerned: for groups with missing, double or differing ranks, for no trainer or two trainers,
/// and for a trainer rank without the committed version. Also throws the errors of the channel.
Meeting meet(ControlChannel& world, std::vector<RankInfo> own,
             const std::vector<std::shared_ptr<const Layout>>& layouts, Deadline deadline);

}  // namespace sparsecast
