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

void add_group(Bytes128& bytes, const FanoutGroup& group) {
  bytes.add(group.name);
  bytes.add(group.layout->hash());
  bytes.add_all(group.ranks);
}

void add_lane(Bytes128& bytes, const Lane& lane) {
  bytes.add(static_cast<std::uint64_t>(lane.source));
  bytes.add(lane.channel);
  bytes.add(lane.slots.size());
  for (const Slot& slot : lane.slots) {
    bytes.add(static_cast<std::uint64_t>(slot.rank));
    bytes.add(slot.copy);
  }
  bytes.add_all(lane.counted_by);
  bytes.add(lane.counted_in_state ? 1 : 0);
  bytes.add(lane.parts.size());
  for (const Part& part : lane.parts) {
    bytes.add(part.tensor);
    bytes.add_all(part.box.offset);
    bytes.add_all(part.box.extent);
    bytes.add_all(part.order);
  }
}

void add_channels(Bytes128& bytes, const FanoutPlan& plan) {
  bytes.add(plan.channels().size());
  for (const Channel& channel : plan.channels()) {
    bytes.add_all(channel.sources);
    bytes.add_all(channel.receivers);
    bytes.add(channel.round);
  }
  bytes.add(plan.transfers().size());
  for (const Transfer& transfer : plan.transfers()) {
    bytes.add(transfer.channel);
    bytes.add(static_cast<std::uint64_t>(transfer.source));
    bytes.add_all(transfer.lanes);
  }
}

}  // namespace

Hash128 hash_plan(const FanoutPlan& plan, const PlanOptions& options) {
  Bytes128 bytes;
  add_group(bytes, plan.trainer());
  bytes.add(plan.engines().size());
  for (const FanoutGroup& engine : plan.engines()) add_group(bytes, engine);
  bytes.add(options.max_channels_per_rank);
  bytes.add(options.lane_cost_bytes);
  bytes.add(options.unsent.size());
  for (const std::string& pattern : options.unsent) bytes.add(pattern);
  bytes.add(plan.table().hash());
  bytes.add(plan.lanes().size());
  Bytes128 of_lane;
  for (const Lane& lane : plan.lanes()) {
    of_lane.clear();
    add_lane(of_lane, lane);
    bytes.add(of_lane.hash());
  }
  add_channels(bytes, plan);
  return bytes.hash();
}

}  // namespace sparsecast::fanout
