// SPDX-License-Identifier: Apache-2.0
#pragma once

// Layouts written by hand, for tests whose right answer is known.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sparsecast/fanout_plan.hpp"

namespace sparsecast::test {

/// A shard of a table's tensor as a contiguous local tensor of its own.
struct Piece {
  std::string tensor;
  Box box;
  bool has_base = true;
};

struct SmallRank {
  std::string node;
  std::vector<Piece> pieces;
};

inline TensorSpec matrix(const std::string& name, std::uint64_t rows, std::uint64_t columns) {
  return {name, DType::kBF16, {rows, columns}};
}

inline Box rows(std::uint64_t begin, std::uint64_t end, std::uint64_t columns) {
  return {{begin, 0}, {end - begin, columns}};
}

inline std::shared_ptr<const Layout> small_layout(const std::vector<TensorSpec>& specs,
                                                  const std::vector<SmallRank>& ranks,
                                                  std::vector<TiedTensor> ties = {}) {
  const TensorTable table(specs);
  std::vector<RankLayout> layouts;
  for (const SmallRank& rank : ranks) {
    RankLayout layout{rank.node, {}, {}};
    for (const Piece& piece : rank.pieces) {
      const auto tensor = static_cast<std::uint32_t>(table.find(piece.tensor).value());
      std::vector<std::int64_t> strides(piece.box.extent.size(), 1);
      for (std::size_t d = strides.size(); d > 1; --d) {
        strides[d - 2] = strides[d - 1] * static_cast<std::int64_t>(piece.box.extent[d - 1]);
      }
      layout.shards.push_back(
          {tensor, piece.box, static_cast<std::uint32_t>(layout.tensors.size()), 0, strides, piece.has_base});
      layout.tensors.push_back({piece.tensor, table[tensor].dtype, piece.box.elements()});
    }
    layouts.push_back(std::move(layout));
  }
  return std::make_shared<Layout>(table, std::move(layouts), std::move(ties));
}

/// World ranks from `first` on.
inline Participant small_participant(const std::string& name, std::shared_ptr<const Layout> layout, int first) {
  Participant participant{name, std::move(layout), {}};
  for (std::size_t r = 0; r < participant.layout->ranks().size(); ++r)
    participant.ranks.push_back(first + static_cast<int>(r));
  return participant;
}

/// `sources` trainer ranks with a bf16 tensor of `length` rows of 4 for each receiver; receiver r holds tensor (s, r)
/// of every source s. World ranks of receivers are from 100 on.
inline FanoutPlan all_to_all(std::size_t sources, std::size_t receivers, std::size_t most_groups,
                             const std::string& node = "", std::uint64_t length = 8) {
  std::vector<TensorSpec> specs;
  std::vector<SmallRank> senders(sources, {node, {}});
  std::vector<SmallRank> holders(receivers, {node, {}});
  for (std::size_t s = 0; s < sources; ++s) {
    for (std::size_t r = 0; r < receivers; ++r) {
      specs.push_back(matrix("t" + std::to_string(s) + "." + std::to_string(r), length, 4));
      senders[s].pieces.push_back({specs.back().name, rows(0, length, 4)});
      holders[r].pieces.push_back({specs.back().name, rows(0, length, 4)});
    }
  }
  PlanOptions options;
  options.max_groups_per_rank = most_groups;
  return FanoutPlan(small_participant("trainer", small_layout(specs, senders), 0),
                    {small_participant("engine", small_layout(specs, holders), 100)}, options);
}

}  // namespace sparsecast::test
