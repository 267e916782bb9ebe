// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "sparsecast/log_follower.hpp"

namespace sparsecast {
namespace {

std::uint64_t saturating_add(std::uint64_t a, std::uint64_t b) {
  return a > std::numeric_limits<std::uint64_t>::max() - b ? std::numeric_limits<std::uint64_t>::max() : a + b;
}

/// Best known path to a version: through an edge, from an anchor, or neither (the version that is here already).
struct Arrival {
  std::uint64_t cost = 0;
  std::uint64_t objects = 0;
  std::uint64_t bytes = 0;
  const DeltaRef* edge = nullptr;
  const AnchorRef* anchor = nullptr;

  /// Prefers lower costs, then fewer objects, then deltas to an anchor, which replaces everything.
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

// A delta leads to a higher version, so edges taken in order of where they begin find the best way to their beginning
// settled: one pass over the sorted edges, and nothing that a forged catalog can turn into a cycle.
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

}  // namespace sparsecast
