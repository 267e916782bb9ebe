// SPDX-License-Identifier: Apache-2.0
#include "fanout/cells.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "core/nearest_name.hpp"
#include "core/utf8.hpp"
#include "layout/name_pattern.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::fanout {
namespace {

class DisjointSets {
 public:
  explicit DisjointSets(std::size_t size) : parent_(size) { std::iota(parent_.begin(), parent_.end(), 0U); }

  std::uint32_t find(std::uint32_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void join(std::uint32_t a, std::uint32_t b) { parent_[find(a)] = find(b); }

 private:
  std::vector<std::uint32_t> parent_;
};

std::string tensor_context(const std::string& name) { return fmt::format("tensor '{}'", excerpt(name)); }

/// Numbers every name of every participant's table, and groups tied names into classes of these numbers.
class Resolver {
 public:
  explicit Resolver(const WorldRanks& world)
      : world_(world), of_(number_names()), all_(ids_.size()), trainers_(ids_.size()) {
    join_ties();
    find_held();
    find_originals();
  }

  CanonicalNames resolve(const std::vector<std::string>& unsent) {
    find_unsent(unsent);
    CanonicalNames names;
    const TensorTable& table = trainer().table();
    std::vector<std::uint32_t> sent(table.size(), kNone);  // Indexed by the original.
    std::vector<TensorSpec> specs;
    for (std::uint32_t t = 0; t < table.size(); ++t) {
      if (original_[all_.find(of_[0][t])] != t) continue;
      if (!is_sent(t)) continue;
      sent[t] = static_cast<std::uint32_t>(specs.size());
      specs.push_back(table[t]);
    }
    names.table = TensorTable(std::move(specs));
    for (std::uint32_t g = 0; g < world_.participants(); ++g) names.tensor_of.push_back(map_participant(g, sent));
    return names;
  }

 private:
  const Layout& trainer() const { return *world_.participant(0).layout; }
  const Layout& layout(std::uint32_t participant) const { return *world_.participant(participant).layout; }

  std::vector<std::vector<std::uint32_t>> number_names() {
    std::vector<std::vector<std::uint32_t>> of(world_.participants());
    for (std::uint32_t g = 0; g < world_.participants(); ++g) {
      of[g].reserve(layout(g).table().size());
      for (const TensorSpec& spec : layout(g).table()) {
        of[g].push_back(ids_.emplace(spec.name, static_cast<std::uint32_t>(ids_.size())).first->second);
      }
    }
    return of;
  }

  void join_ties() {
    is_alias_.resize(ids_.size());
    for (std::uint32_t g = 0; g < world_.participants(); ++g) {
      for (const TiedTensor& tie : layout(g).ties()) {
        const std::uint32_t alias = ids_.at(tie.alias);
        const std::uint32_t original = ids_.at(tie.original);
        all_.join(alias, original);
        if (g != 0) continue;
        trainers_.join(alias, original);
        is_alias_[alias] = true;
      }
    }
  }

  void find_held() {
    held_by_trainer_.resize(ids_.size());
    held_by_engine_.resize(ids_.size(), kNone);
    for (std::uint32_t g = 0; g < world_.participants(); ++g) {
      for (const RankLayout& rank : layout(g).ranks()) {
        for (const Shard& shard : rank.shards) {
          if (shard.box.elements() == 0) continue;
          const std::uint32_t id = of_[g][shard.tensor];
          if (g == 0) {
            held_by_trainer_[trainers_.find(id)] = true;
          } else {
            held_by_engine_[all_.find(id)] = g;
          }
        }
      }
    }
  }

  /// Finds the original of each class. The names of a class that the trainer holds must be in one tie class of the
  /// trainer, because otherwise they may have different values.
  void find_originals() {
    const TensorTable& table = trainer().table();
    std::vector<std::uint32_t> chosen(ids_.size(), kNone);  // Indexed by class: the trainer's own class.
    std::vector<std::uint32_t> named(ids_.size(), kNone);   // Indexed by class: first name of that class.
    for (const bool held : {true, false}) {
      for (std::uint32_t t = 0; t < table.size(); ++t) {
        const std::uint32_t own = trainers_.find(of_[0][t]);
        const std::uint32_t all = all_.find(of_[0][t]);
        if (held_by_trainer_[own] != held) continue;
        if (chosen[all] == kNone) {
          chosen[all] = own;
          named[all] = t;
        } else if (held && chosen[all] != own) {
          refuse_tie(table[named[all]].name, table[t].name);
        }
      }
    }
    original_.assign(ids_.size(), kNone);
    for (std::uint32_t t = 0; t < table.size(); ++t) {
      const std::uint32_t all = all_.find(of_[0][t]);
      if (chosen[all] != trainers_.find(of_[0][t]) || is_alias_[of_[0][t]]) continue;
      if (original_[all] == kNone) original_[all] = t;
    }
  }

  [[noreturn]] void refuse_tie(const std::string& a, const std::string& b) const {
    std::string who = "the engines together tie";
    for (std::uint32_t g = 1; g < world_.participants(); ++g) {
      DisjointSets sets(ids_.size());
      for (const TiedTensor& tie : layout(g).ties()) sets.join(ids_.at(tie.alias), ids_.at(tie.original));
      if (sets.find(ids_.at(a)) == sets.find(ids_.at(b)))
        who = fmt::format("engine '{}' ties", world_.participant(g).name);
    }
    throw Error(ErrorCode::kUsage,
                fmt::format("{} it with '{}', but the trainer holds a value of each", who, excerpt(b)),
                tensor_context(a));
  }

  void find_unsent(const std::vector<std::string>& patterns) {
    unsent_.resize(ids_.size());
    for (std::uint32_t t = 0; t < trainer().table().size(); ++t) {
      const std::string& name = trainer().table()[t].name;
      if (std::ranges::any_of(patterns, [&](const std::string& pattern) { return matches_wildcard(pattern, name); })) {
        unsent_[all_.find(of_[0][t])] = true;
      }
    }
  }

  bool is_sent(std::uint32_t original) {
    const TensorSpec& spec = trainer().table()[original];
    const std::uint32_t all = all_.find(of_[0][original]);
    if (held_by_engine_[all] != kNone) return true;
    if (spec.elements() == 0 || !held_by_trainer_[trainers_.find(of_[0][original])] || world_.participants() == 1)
      return false;
    if (unsent_[all]) return false;
    std::string near;
    for (std::uint32_t g = 1; g < world_.participants() && near.empty(); ++g)
      near = near_in(layout(g).table(), spec.name);
    throw Error(ErrorCode::kUsage, "the trainer has it, but no engine holds it" + near, tensor_context(spec.name));
  }

  static std::string near_in(const TensorTable& table, const std::string& name) {
    const std::string found = nearest_name(table, name);
    // `found` may be `name` itself: a table may contain a tensor that none of its ranks holds.
    return found.empty() || found == name ? "" : fmt::format("; the nearest name there is '{}'", excerpt(found));
  }

  std::vector<std::uint32_t> map_participant(std::uint32_t participant, const std::vector<std::uint32_t>& sent) {
    const TensorTable& table = layout(participant).table();
    std::vector<std::uint32_t> tensor_of(table.size(), kNone);
    for (std::uint32_t t = 0; t < table.size(); ++t) {
      const std::uint32_t all = all_.find(of_[participant][t]);
      const std::uint32_t original = original_[all];
      if (original == kNone) {
        if (participant == 0 || held_by_engine_[all] == kNone) continue;
        throw Error(
            ErrorCode::kUsage,
            fmt::format("engine '{}' holds it, but the trainer does not have it{}",
                        world_.participant(held_by_engine_[all]).name, near_in(trainer().table(), table[t].name)),
            tensor_context(table[t].name));
      }
      tensor_of[t] = sent[original];
      if (tensor_of[t] != kNone) check_same(participant, table[t], trainer().table()[original]);
    }
    return tensor_of;
  }

  void check_same(std::uint32_t participant, const TensorSpec& theirs, const TensorSpec& original) const {
    if (theirs.dtype == original.dtype && theirs.shape == original.shape) return;
    const auto text = [](const TensorSpec& spec) {
      return fmt::format("{} {}", to_string(spec.dtype), to_string(whole_box(spec.shape)));
    };
    throw Error(ErrorCode::kUsage,
                fmt::format("{} '{}' has {}, but the trainer has {}{}", participant == 0 ? "trainer" : "engine",
                            world_.participant(participant).name, text(theirs), text(original),
                            theirs.name == original.name ? "" : fmt::format(" as '{}'", excerpt(original.name))),
                tensor_context(theirs.name));
  }

  const WorldRanks& world_;
  std::unordered_map<std::string_view, std::uint32_t> ids_;
  /// Id of each name: of_[p][t] is that of tensor t in the table of participant p.
  std::vector<std::vector<std::uint32_t>> of_;
  DisjointSets all_;
  DisjointSets trainers_;  ///< Sets formed by the trainer's ties only.
  std::vector<bool> is_alias_;
  /// Indexed by the trainer's class: true if a rank of the trainer holds a tensor of the class.
  std::vector<bool> held_by_trainer_;
  /// Indexed by class: an engine that holds a tensor of the class; kNone if none does.
  std::vector<std::uint32_t> held_by_engine_;
  std::vector<bool> unsent_;             ///< Indexed by class: true if PlanOptions::unsent matches one of its names.
  std::vector<std::uint32_t> original_;  ///< Indexed by class: the index of its original in the trainer's table.
};

}  // namespace

CanonicalNames resolve_names(const WorldRanks& world, const std::vector<std::string>& unsent) {
  return Resolver(world).resolve(unsent);
}

}  // namespace sparsecast::fanout
