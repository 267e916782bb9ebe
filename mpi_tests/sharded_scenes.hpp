// SPDX-License-Identifier: Apache-2.0
#pragma once

// Small models, cut as frameworks cut large ones.

#include <memory>
#include <numeric>

#include "sharded_member.hpp"
#include "sparsecast/layout.hpp"

namespace sparsecast::mpi_test {

inline constexpr std::uint64_t kShardedVersions = 20;

inline std::vector<int> range_of_ranks(int first, int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

inline std::shared_ptr<const Layout> share(LayoutBuilder&& builder) {
  return std::make_shared<const Layout>(builder.build());
}

/// Embedding, head and decoder layers with grouped queries.
std::shared_ptr<const Layout> dense_fsdp(std::uint32_t ranks, std::uint32_t layers, std::uint64_t vocabulary);
/// A stage a layer: the embedding on the first, the head on the last.
std::shared_ptr<const Layout> dense_megatron(std::uint32_t tp, std::uint32_t pp, std::uint64_t vocabulary);
std::shared_ptr<const Layout> dense_engine(std::uint32_t tp, std::uint32_t layers, std::uint64_t vocabulary);

inline constexpr std::uint32_t kSceneExperts = 16;
/// Two layers of experts, each with a norm. Trainer: a stage a layer, experts stacked.
std::shared_ptr<const Layout> experts_megatron(std::uint32_t ep);
/// Experts as tensors of their own; norms on every rank. `places`: the expert in each place, in all layers.
std::shared_ptr<const Layout> experts_engine(std::uint32_t ep, const std::vector<std::uint32_t>& places);
std::vector<std::uint32_t> experts_in_order();

}  // namespace sparsecast::mpi_test
