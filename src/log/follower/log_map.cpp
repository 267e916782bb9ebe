// SPDX-License-Identifier: Apache-2.0
#include "log/follower/log_map.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "sparsecast/error.hpp"
#include "sparsecast/log_follower.hpp"

namespace sparsecast {
namespace {

std::uint64_t saturating_add(std::uint64_t a, std::uint64_t b) {
  return a > std::numeric_limits<std::uint64_t>::max() - b ? std::numeric_limits<std::uint64_t>::max() : a + b;
}

/// Best known path to a version. It ends with a delta (`edge`) or starts from an anchor; with neither, the target is at
/// the version already.
struct Arrival {
  std::uint64_t cost = 0;
  std::uint64_t objects = 0;
  std::uint64_t bytes = 0;
  const DeltaRef* edge = nullptr;
  const AnchorRef* anchor = nullptr;

  /// Prefers lower costs, then fewer objects, then deltas over an anchor, which replaces the whole target.
  friend bool operator<(const Arrival& a, const Arrival& b) {
    return std::make_tuple(a.cost, a.objects, a.anchor != nullptr) <
           std::make_tuple(b.cost, b.objects, b.anchor != nullptr);
  }
};

using Arrivals = std::map<std::uint64_t, Arrival>;

void offer(Arrivals& arrivals, std::uint64_t version, const Arrival& arrival) {
  const auto [known, fresh] = arrivals.try_emplace(version, arrival);
  if (!fresh && arrival < known->second) known->second = arrival;
}

Arrival extended(const Arrival& before, std::uint64_t bytes, std::uint64_t object_cost_bytes) {
  Arrival next;
  next.cost = saturating_add(before.cost, saturating_add(bytes, object_cost_bytes));
  next.objects = before.objects + 1;
  next.bytes = saturating_add(before.bytes, bytes);
  return next;
}

}  // namespace

// A delta leads to a higher version. So if the edges are taken in order of their base versions, the best path to each
// base is already final. One pass over the sorted edges suffices, and a forged catalog cannot make a cycle.
std::optional<CatchUpPath> cheapest_path(std::optional<std::uint64_t> from, std::uint64_t to,
                                         const std::vector<DeltaRef>& edges, const std::vector<AnchorRef>& anchors,
                                         std::uint64_t object_cost_bytes) {
  Arrivals arrivals;
  if (from) offer(arrivals, *from, Arrival{});
  for (const AnchorRef& anchor : anchors) {
    Arrival seeded = extended(Arrival{}, anchor.bytes, object_cost_bytes);
    seeded.anchor = &anchor;
    offer(arrivals, anchor.version, seeded);
  }

  std::vector<const DeltaRef*> forward;
  for (const DeltaRef& edge : edges) {
    if (edge.from < edge.to && edge.to <= to) forward.push_back(&edge);
  }
  std::sort(forward.begin(), forward.end(), [](const DeltaRef* a, const DeltaRef* b) { return a->from < b->from; });
  for (const DeltaRef* edge : forward) {
    const auto begin = arrivals.find(edge->from);
    if (begin == arrivals.end()) continue;
    Arrival arrival = extended(begin->second, edge->bytes, object_cost_bytes);
    arrival.edge = edge;
    offer(arrivals, edge->to, arrival);
  }

  auto at = arrivals.find(to);
  if (at == arrivals.end()) return std::nullopt;
  CatchUpPath path;
  path.bytes = at->second.bytes;
  while (at->second.edge != nullptr) {
    path.deltas.push_back(*at->second.edge);
    at = arrivals.find(at->second.edge->from);
  }
  if (at->second.anchor != nullptr) path.anchor = *at->second.anchor;
  std::reverse(path.deltas.begin(), path.deltas.end());
  return path;
}

void LogMap::add(const LogCommit& commit) {
  Known known{commit.digest, std::nullopt};
  if (commit.kind != CommitKind::kGenesis && commit.version > 0) {
    known.edge = DeltaRef{commit.version - 1, commit.version, commit.delta, commit.delta_bytes};
  }
  commits_[commit.version] = known;
}

void LogMap::load_catalog(bool again) {
  if (has_catalog_ && !again) return;
  catalog_ = reader_.catalog().value_or(LogCatalog{});
  has_catalog_ = true;
}

const LogMap::Known* LogMap::read(std::uint64_t version) {
  auto found = commits_.find(version);
  if (found == commits_.end()) {
    const std::optional<LogCommit> commit = reader_.commit(version);
    if (!commit) return nullptr;
    add(*commit);
    found = commits_.find(version);
  }
  return &found->second;
}

std::optional<StateDigest> LogMap::digest_of(std::uint64_t version) const {
  const auto found = commits_.find(version);
  if (found == commits_.end()) return std::nullopt;
  return found->second.digest;
}

StateDigest LogMap::require_digest(std::uint64_t version) {
  const Known* known = read(version);
  if (known == nullptr) throw Error(ErrorCode::kGone, "there is no such commit", commit_key(version));
  return known->digest;
}

bool LogMap::usable(const DeltaRef& edge) const {
  return edge.from >= floor_ && !avoided_.contains({edge.hash, edge.bytes});
}

std::vector<DeltaRef> LogMap::edges() const {
  std::vector<DeltaRef> edges;
  for (const DeltaRef& edge : catalog_.deltas) {
    if (by_commits_) break;
    // Commits have precedence; the catalog is only a hint.
    if (edge.to == edge.from + 1 && !commits_.contains(edge.to) && usable(edge)) edges.push_back(edge);
  }
  if (merged_ && !every_version_ && !by_commits_) {
    for (const DeltaRef& edge : catalog_.merged) {
      if (usable(edge)) edges.push_back(edge);
    }
  }
  for (const auto& [version, known] : commits_) {
    if (known.edge && usable(*known.edge)) edges.push_back(*known.edge);
  }
  return edges;
}

std::vector<AnchorRef> LogMap::anchors(std::uint64_t least, std::uint64_t most) const {
  std::vector<AnchorRef> usable;
  for (const AnchorRef& anchor : catalog_.anchors) {
    if (anchor.version >= std::max(least, floor_) && anchor.version <= most &&
        !avoided_.contains({anchor.record_hash, anchor.bytes})) {
      usable.push_back(anchor);
    }
  }
  return usable;
}

/// Reads commits until a path to `to` is known. Works backwards: of the versions from which `to` can be reached, reads
/// the commit of the lowest one not read yet, which adds its single delta. Stops when a possible start is among them.
void LogMap::read_missing(std::optional<std::uint64_t> from, std::uint64_t to, const std::vector<AnchorRef>& anchors) {
  std::multimap<std::uint64_t, std::uint64_t> beginnings;  // Base versions of deltas, by target version.
  for (const DeltaRef& edge : edges()) {
    if (edge.to <= to) beginnings.emplace(edge.to, edge.from);
  }
  const std::uint64_t lowest = std::max(floor_, from.value_or(0));
  std::set<std::uint64_t> starts;
  if (from) {
    starts.insert(*from);
  } else {
    for (const AnchorRef& anchor : anchors) starts.insert(anchor.version);
  }

  std::set<std::uint64_t> reached;
  std::set<std::uint64_t> unread;
  bool arrived = false;
  const auto reach = [&](std::uint64_t version) {
    std::vector<std::uint64_t> fresh{version};
    while (!fresh.empty()) {
      const std::uint64_t at = fresh.back();
      fresh.pop_back();
      if (at < lowest || !reached.insert(at).second) continue;
      arrived = arrived || starts.contains(at);
      if (at > lowest) unread.insert(at);
      const auto [begin, end] = beginnings.equal_range(at);
      for (auto edge = begin; edge != end; ++edge) fresh.push_back(edge->second);
    }
  };
  reach(to);
  for (std::size_t count = 0; !arrived && !unread.empty(); ++count) {
    if (count >= kMostCommits && from && !anchors.empty()) return;
    const std::uint64_t version = *unread.begin();
    unread.erase(unread.begin());
    const Known* known = read(version);
    if (known != nullptr && known->edge && usable(*known->edge)) reach(version - 1);
  }
}

std::optional<CatchUpPath> LogMap::path(std::optional<std::uint64_t> from, std::uint64_t to) {
  const std::vector<AnchorRef> usable_anchors = anchors(from.value_or(0), to);
  if (from && *from >= floor_) {
    read_missing(from, to, usable_anchors);
    const std::vector<AnchorRef> none;
    auto found = cheapest_path(from, to, edges(), every_version_ ? none : usable_anchors, object_cost_bytes_);
    if (found) return found;
  }
  if (usable_anchors.empty()) return std::nullopt;
  read_missing(std::nullopt, to, usable_anchors);
  return cheapest_path(std::nullopt, to, edges(), usable_anchors, object_cost_bytes_);
}

std::optional<std::uint64_t> LogMap::find(const StateDigest& digest, std::uint64_t head,
                                          std::optional<std::uint64_t> hint, std::optional<std::uint64_t> after) {
  const auto is = [&](std::uint64_t version) {
    const Known* known = version <= head ? read(version) : nullptr;
    return known != nullptr && known->digest == digest;
  };
  if (after && *after >= head) return std::nullopt;
  if (is(head)) return head;
  if (hint && !after) {
    for (std::uint64_t i = 0; i <= kMostCommits && *hint + i < head; ++i) {
      if (is(*hint + i)) return *hint + i;
    }
  }
  if (!after && is(0)) return 0;
  const bool bounded = !anchors(0, head).empty();
  for (std::uint64_t version = head; version > 0; --version) {
    if ((bounded && head - version >= kMostCommits) || (after && version - 1 <= *after)) break;
    if (is(version - 1)) return version - 1;
    if (!commits_.contains(version - 1)) break;  // Before the log's first commit.
  }
  return std::nullopt;
}

}  // namespace sparsecast
