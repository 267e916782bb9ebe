// SPDX-License-Identifier: Apache-2.0
#include "fanout/hash.hpp"

#include <cstring>

namespace sparsecast::fanout {
namespace {

/// Every number in 8 bytes, and the size before everything that has one: no two plans have the same bytes.
class Bytes128 {
 public:
  void add(std::uint64_t value) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof(value));
    std::memcpy(bytes_.data() + at, &value, sizeof(value));
  }
  void add(const std::string& text) {
    add(text.size());
    const auto bytes = std::as_bytes(std::span(text));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void add(const Hash128& hash) {
    add(hash.lo);
    add(hash.hi);
  }
  template <class T>
  void add_all(const std::vector<T>& values) {
    add(values.size());
    for (const T& value : values) add(static_cast<std::uint64_t>(value));
  }
  void clear() { bytes_.clear(); }
  Hash128 hash() const { return xxh3_128(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

void add_participant(Bytes128& bytes, const Participant& participant) {
  bytes.add(participant.name);
  bytes.add(participant.layout->hash());
  bytes.add_all(participant.ranks);
}

void add_route(Bytes128& bytes, const Route& route) {
  bytes.add(static_cast<std::uint64_t>(route.source));
  bytes.add(route.group);
  bytes.add(route.destinations.size());
  for (const Destination& destination : route.destinations) {
    bytes.add(static_cast<std::uint64_t>(destination.rank));
    bytes.add(destination.copy);
  }
  bytes.add_all(route.counted_by);
  bytes.add(route.counted_in_state ? 1 : 0);
  bytes.add(route.regions.size());
  for (const Region& region : route.regions) {
    bytes.add(region.tensor);
    bytes.add_all(region.box.offset);
    bytes.add_all(region.box.extent);
    bytes.add_all(region.order);
  }
}

void add_groups(Bytes128& bytes, const FanoutPlan& plan) {
  bytes.add(plan.groups().size());
  for (const RouteGroup& group : plan.groups()) {
    bytes.add_all(group.sources);
    bytes.add_all(group.receivers);
    bytes.add(group.round);
  }
  bytes.add(plan.transfers().size());
  for (const Transfer& transfer : plan.transfers()) {
    bytes.add(transfer.group);
    bytes.add(static_cast<std::uint64_t>(transfer.source));
    bytes.add_all(transfer.routes);
  }
}

}  // namespace

Hash128 hash_plan(const FanoutPlan& plan, const PlanOptions& options) {
  Bytes128 bytes;
  add_participant(bytes, plan.trainer());
  bytes.add(plan.engines().size());
  for (const Participant& engine : plan.engines()) add_participant(bytes, engine);
  bytes.add(options.max_groups_per_rank);
  bytes.add(options.route_cost_bytes);
  bytes.add(options.unsent.size());
  for (const std::string& pattern : options.unsent) bytes.add(pattern);
  bytes.add(plan.table().hash());
  bytes.add(plan.routes().size());
  Bytes128 of_route;
  for (const Route& route : plan.routes()) {
    of_route.clear();
    add_route(of_route, route);
    bytes.add(of_route.hash());
  }
  add_groups(bytes, plan);
  return bytes.hash();
}

}  // namespace sparsecast::fanout
