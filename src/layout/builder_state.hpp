// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "layout/cut_rules.hpp"
#include "layout/mesh_map.hpp"
#include "sparsecast/layout_builders.hpp"

namespace sparsecast {

/// The state that a LayoutBuilder has collected.
struct BuilderState {
  BuilderState(const std::vector<Mesh>& meshes, std::size_t max);

  /// Throws Error{kUsage} for an unknown name.
  std::uint32_t find(std::string_view name) const;
  /// Returns the dtype of the tensors that make one local tensor. Throws Error{kUsage} when they have several.
  DType common_dtype(const std::vector<std::uint32_t>& tensors) const;
  /// Adds a local tensor of `places` times these rows; returns its index.
  std::uint32_t add_local(RankLayout& rank, std::string name, DType dtype, const LocalRows& rows, std::uint64_t places);
  void add_shard(RankLayout& rank, Shard shard);

  MeshMap mesh;
  std::size_t max_shards;
  std::size_t shards = 0;
  std::size_t locals = 0;
  std::vector<TensorSpec> specs;
  std::map<std::string, std::uint32_t, std::less<>> by_name;
  std::vector<RankLayout> ranks;
  std::vector<TiedTensor> ties;
};

struct LayoutBuilder::State : BuilderState {
  using BuilderState::BuilderState;
};

/// Element strides of the last dimensions of a local tensor: [rows, row_shape...].
std::vector<std::int64_t> row_strides(const LocalRows& rows, std::size_t dims);

}  // namespace sparsecast
