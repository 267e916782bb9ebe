// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "sparsecast/digest.hpp"

namespace sparsecast::fanout {

/// Stores each distinct list of numbers once, and gives it an id. Ids are 0, 1, ... in the order in which the lists are
/// first added. All lists are stored in one array.
class ListInterner {
 public:
  /// Returns the id of `list`. Stores the list first if it is new.
  std::uint32_t intern(std::span<const std::uint32_t> list) {
    if (2 * (begins_.size() + 1) > table_.size()) grow();
    std::size_t at = place(list);
    while (table_[at] != 0) {
      if (std::ranges::equal((*this)[table_[at] - 1], list)) return table_[at] - 1;
      at = (at + 1) & (table_.size() - 1);
    }
    pool_.insert(pool_.end(), list.begin(), list.end());
    begins_.push_back(pool_.size());
    table_[at] = static_cast<std::uint32_t>(size());
    return table_[at] - 1;
  }

  /// Returns the list with this id. The result is valid until the next intern().
  std::span<const std::uint32_t> operator[](std::uint32_t id) const {
    return std::span(pool_).subspan(begins_[id], begins_[id + 1] - begins_[id]);
  }
  std::size_t size() const { return begins_.size() - 1; }

  void clear() {
    pool_.clear();
    begins_.assign(1, 0);
    table_.assign(kLeastTable, 0);
  }

 private:
  static constexpr std::size_t kLeastTable = 16;

  std::size_t place(std::span<const std::uint32_t> list) const {
    return xxh3_64(std::as_bytes(list)) & (table_.size() - 1);
  }
  void grow() {
    table_.assign(2 * table_.size(), 0);
    for (std::uint32_t id = 0; id < size(); ++id) {
      std::size_t at = place((*this)[id]);
      while (table_[at] != 0) at = (at + 1) & (table_.size() - 1);
      table_[at] = id + 1;
    }
  }

  std::vector<std::uint32_t> pool_;
  std::vector<std::size_t> begins_{0};
  /// Hash table that finds lists by their content. An entry is the id of a list plus 1; 0 marks a free entry.
  std::vector<std::uint32_t> table_ = std::vector<std::uint32_t>(kLeastTable, 0);
};

}  // namespace sparsecast::fanout
