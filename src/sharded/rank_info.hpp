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

/// Message of a rank about itself in one role; the first collective of meet() sends it to all ranks.
struct RankInfo {
  Role role = Role::kEngine;
  std::string group;  ///< Name of the engine, or "trainer".
  std::uint32_t rank = 0;
  Hash128 layout;  ///< Hash of the layout. Rank 0's counts for its group.
  /// Hash of the next layout, which replaces `layout` if rank 0 of the group has adopted it already; zero: none.
  Hash128 next_layout;
  std::uint64_t layout_bytes = 0;  ///< Size of the serialized layout; set by meet() on rank 0.
  std::uint64_t version = 0;       ///< Version that this rank has verified.
  std::uint64_t in_doubt = 0;      ///< Version that it voted for without receiving the decision; 0: none.
  std::uint64_t last_attempt = 0;  ///< The highest attempt number that it knows of.
  bool needs_anchor = false;
  PlanOptions plan;  ///< Used only from the trainer's rank 0.

  /// Sets the hashes of the layouts; `next` may be null.
  void set_layouts(const Layout& current, const Layout* next);
};

/// Encodes the roles of a rank, one or two.
Bytes pack_roles(const std::vector<RankInfo>& roles);
/// Decodes the output of pack_roles. Throws Error{kCorrupt} that names the peer, or Error{kGroupMismatch} for another
/// version of the format.
std::vector<RankInfo> parse_roles(ConstBytes bytes, const std::string& peer);
/// Joins the messages of all ranks, in their order, into one. Consecutive ranks that differ only in their rank numbers,
/// which go up by one, are stored once, so the size grows with the number of groups. Throws as parse_roles does.
Bytes join_roles(const std::vector<Bytes>& packed);
/// Returns the roles of each of `ranks` ranks from the output of join_roles. Throws as parse_roles does.
std::vector<std::vector<RankInfo>> parse_joined_roles(ConstBytes bytes, std::size_t ranks, const std::string& peer);

/// Participant of the regroup, the trainer or an engine.
struct MeetingParticipant {
  Participant participant;
  bool needs_anchor = false;
};

/// Facts that all ranks know after a regroup's first collective, equal on all of them.
struct Meeting {
  MeetingParticipant trainer;
  std::vector<MeetingParticipant> engines;  ///< In order of their first rank in the world.
  PlanOptions plan;
  int coordinator = 0;             ///< World rank of the trainer's rank 0, which decides.
  std::uint64_t version = 0;       ///< The last version that the coordinator has committed.
  std::uint64_t last_attempt = 0;  ///< The highest number of any delta in this world.
  std::vector<std::string> names;  ///< Display name of each world rank.

  /// Returns whether the engine of this rank needs an anchor.
  bool needs_anchor(int world_rank) const;
  /// Returns a name such as "engine 'b' rank 3", "trainer rank 0" or "trainer rank 0 and engine 'b' rank 3".
  const std::string& name_of(int world_rank) const { return names[static_cast<std::size_t>(world_rank)]; }
};

/// Collective over `world`. `layouts` are the layouts that this rank already has, the current and the next ones of its
/// roles, so that it need not parse them. Layouts that groups share are sent once. Throws Error{kGroupMismatch} that
/// names the ranks concerned: groups with missing, double or differing ranks, no trainer, a trainer rank without the
/// committed version. Also throws the errors of the channel.
Meeting meet(ControlChannel& world, std::vector<RankInfo> own,
             const std::vector<std::shared_ptr<const Layout>>& layouts, Deadline deadline);

}  // namespace sparsecast
