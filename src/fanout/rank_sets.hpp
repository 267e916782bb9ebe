// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace sparsecast::fanout {

/// A set of dense ranks.
class RankSet {
 public:
  explicit RankSet(std::uint32_t ranks) : words_((ranks + 63) / 64) {}

  void insert(std::uint32_t rank) { words_[rank / 64] |= std::uint64_t{1} << (rank % 64); }
  bool contains(std::uint32_t rank) const { return (words_[rank / 64] >> (rank % 64) & 1) != 0; }
  RankSet& operator|=(const RankSet& other) {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
    return *this;
  }
  std::uint64_t size() const {
    std::uint64_t count = 0;
    for (const std::uint64_t word : words_) count += static_cast<std::uint64_t>(std::popcount(word));
    return count;
  }
  /// Returns the size of the union of both sets.
  std::uint64_t size_with(const RankSet& other) const {
    std::uint64_t count = 0;
    for (std::size_t i = 0; i < words_.size(); ++i) {
      count += static_cast<std::uint64_t>(std::popcount(words_[i] | other.words_[i]));
    }
    return count;
  }
  /// Ascending.
  template <class Visit>
  void visit(const Visit& visit_rank) const {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      for (std::uint64_t word = words_[i]; word != 0; word &= word - 1) {
        visit_rank(static_cast<std::uint32_t>(i * 64 + static_cast<std::size_t>(std::countr_zero(word))));
      }
    }
  }
  friend auto operator<=>(const RankSet&, const RankSet&) = default;

 private:
  std::vector<std::uint64_t> words_;
};

}  // namespace sparsecast::fanout
