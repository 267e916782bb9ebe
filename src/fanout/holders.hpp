// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fanout/cells.hpp"

namespace sparsecast::fanout {

/// Every shard with elements of a tensor that is sent, by tensor; those of one tensor ascending.
class Holders {
 public:
  Holders(const WorldRanks& world, const CanonicalNames& names);

  /// Returns the trainer's holders of a tensor that have a base.
  std::span<const Holder> senders(std::uint32_t tensor) const { return senders_.of(tensor); }
  /// Returns the engines' holders of a tensor.
  std::span<const Holder> receivers(std::uint32_t tensor) const { return receivers_.of(tensor); }

 private:
  struct HolderLists {
    std::vector<Holder> holders;
    std::vector<std::size_t> begins;
    std::span<const Holder> of(std::uint32_t tensor) const {
      return std::span(holders).subspan(begins[tensor], begins[tensor + 1] - begins[tensor]);
    }
  };
  HolderLists senders_;
  HolderLists receivers_;
};

/// The different boxes of some holders, each with its holders.
class UniqueBoxes {
 public:
  void assign(const WorldRanks& world, std::span<const Holder> holders);

  std::uint32_t size() const { return static_cast<std::uint32_t>(boxes_.size()); }
  std::span<const Box* const> boxes() const { return boxes_; }
  std::span<const Holder> holders(std::uint32_t i) const {
    return std::span(sorted_).subspan(begins_[i], begins_[i + 1] - begins_[i]);
  }

 private:
  std::vector<Holder> sorted_;
  std::vector<const Box*> boxes_;
  std::vector<std::size_t> begins_;
};

inline const Shard& shard_of(const WorldRanks& world, const Holder& holder) {
  return world[holder.rank].layout->shards[holder.shard];
}

}  // namespace sparsecast::fanout
