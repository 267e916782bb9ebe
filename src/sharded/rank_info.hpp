#pragma once

// The ranks of a trainer and its engines find out who they are: the first thing of every regroup.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sparsecast/control_channel.hpp"
#include "sparsecast/fanout_plan.hpp"

namespace sparsecast {

enum class Role : std::uint8_t { kTrainer, kEngine };

/// Description that a rank sends about itself for one role.
struct RankInfo {
  Role role = Role::kEngine;
  std::string group;  ///< The engine's name; "trainer".
  std::uint32_t rank = 0;
  Hash128 layout;                  ///< Its hash; the group's is its rank 0's.
  Hash128 next_layout;             ///< Hash of the layout that counts instead if rank 0 has it already; zero: none.
  std::uint64_t layout_bytes = 0;  ///< Bytes of the packed layout; set by meet() on rank 0 of a group.
  std::uint64_t version = 0;       ///< Verified by this rank.
  std::uint64_t in_doubt = 0;      ///< A version that it has consented to without hearing the decision; 0: none.
  std::uint64_t last_attempt = 0;  ///< The highest number that it knows of.
  bool needs_anchor = false;
  PlanOptions plan;  ///< Counts on the trainer's rank 0.

  /// `next` may be null.
  void set_layouts(const Layout& current, const Layout* next);
};

/// A rank has a role, or both.
Bytes pack_roles(const std::vector<RankInfo>& roles);
/// Throws Error{kCorrupt} that names the peer.
std::vector<RankInfo> parse_roles(ConstBytes bytes, const std::string& peer);

/// One group of the meeting.
struct MeetingParticipant {
  Participant participant;
  bool needs_anchor = false;
};

/// Result of the meeting, equal on all ranks.
struct Meeting {
  MeetingParticipant trainer;
  std::vector<MeetingParticipant> engines;  ///< In order of their first rank in the world.
  PlanOptions plan;
  int coordinator = 0;             ///< SyncWorld rank of the trainer's rank 0: its decisions stand.
  std::uint64_t version = 0;       ///< The last one that the coordinator has committed.
  std::uint64_t last_attempt = 0;  ///< No delta of this world has had a higher number.
  std::vector<std::string> names;  ///< Names of the ranks, indexed by world rank.

  /// This rank's engine has to be seeded.
  bool seeds(int world_rank) const;
  /// "engine 'b' rank 3", "trainer rank 0", "trainer rank 0 and engine 'b' rank 3".
  const std::string& name_of(int world_rank) const { return names[static_cast<std::size_t>(world_rank)]; }
};

/// Collective over `world`. `layouts` are those that this rank has: of its roles, and their next ones; so that they
/// need not be parsed. Layouts that groups share travel once. Throws Error{kGroupMismatch} that names who: groups with
/// missing, double or differing ranks, no trainer, a trainer rank without the committed version; and what the channel
/// throws.
Meeting meet(ControlChannel& world, std::vector<RankInfo> own,
             const std::vector<std::shared_ptr<const Layout>>& layouts, Deadline deadline);

}  // namespace sparsecast
