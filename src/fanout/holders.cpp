// SPDX-License-Identifier: Apache-2.0
#include "fanout/holders.hpp"

#include <algorithm>

namespace sparsecast::fanout {
namespace {

template <class Visit>
void visit_shards(const WorldRanks& world, const CanonicalNames& names, const Visit& visit) {
  for (std::uint32_t rank = 0; rank < world.size(); ++rank) {
    const std::vector<std::uint32_t>& tensor_of = names.tensor_of[world[rank].participant];
    const std::vector<Shard>& shards = world[rank].layout->shards;
    for (std::uint32_t s = 0; s < shards.size(); ++s) {
      const std::uint32_t tensor = tensor_of[shards[s].tensor];
      if (tensor == kNone || shards[s].box.elements() == 0) continue;
      const bool sends = world[rank].participant == 0;
      if (!sends || shards[s].has_base) visit(sends, tensor, Holder{rank, s});
    }
  }
}

}  // namespace

Holders::Holders(const WorldRanks& world, const CanonicalNames& names) {
  const std::size_t tensors = names.table.size();
  for (HolderLists* lists : {&senders_, &receivers_}) lists->begins.assign(tensors + 1, 0);
  visit_shards(world, names, [&](bool sends, std::uint32_t tensor, const Holder&) {
    ++(sends ? senders_ : receivers_).begins[tensor + 1];
  });
  for (HolderLists* lists : {&senders_, &receivers_}) {
    for (std::size_t t = 0; t < tensors; ++t) lists->begins[t + 1] += lists->begins[t];
    lists->holders.resize(lists->begins[tensors]);
  }
  auto sender_end = senders_.begins;
  auto receiver_end = receivers_.begins;
  visit_shards(world, names, [&](bool sends, std::uint32_t tensor, const Holder& holder) {
    if (sends) {
      senders_.holders[sender_end[tensor]++] = holder;
    } else {
      receivers_.holders[receiver_end[tensor]++] = holder;
    }
  });
}

void UniqueBoxes::assign(const WorldRanks& world, std::span<const Holder> holders) {
  sorted_.assign(holders.begin(), holders.end());
  const auto box = [&](const Holder& holder) -> const Box& { return shard_of(world, holder).box; };
  const bool one = std::all_of(sorted_.begin(), sorted_.end(),
                               [&](const Holder& holder) { return box(holder) == box(sorted_.front()); });
  if (!one) {
    std::stable_sort(sorted_.begin(), sorted_.end(), [&](const Holder& a, const Holder& b) { return box(a) < box(b); });
  }
  boxes_.clear();
  begins_.clear();
  for (std::size_t i = 0; i < sorted_.size(); ++i) {
    const Box& next = box(sorted_[i]);
    if (!boxes_.empty() && *boxes_.back() == next) continue;
    boxes_.push_back(&next);
    begins_.push_back(i);
  }
  begins_.push_back(sorted_.size());
}

}  // namespace sparsecast::fanout
