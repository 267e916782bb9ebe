// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parts of LayoutBuilder: the mesh (mesh_map.cpp), the rules of cuts (cut_rules.cpp) and its state.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sparsecast/layout.hpp"

namespace sparsecast {

/// Part `index` of `count`.
struct PartOf {
  std::uint64_t index = 0;
  std::uint64_t count = 1;
};

/// The coordinates of every rank on every axis.
class MeshMap {
 public:
  /// Throws Error{kUsage} for invalid meshes, and for meshes of more than Layout::kMaxRanks ranks.
  explicit MeshMap(const std::vector<Mesh>& meshes);

  std::size_t ranks() const noexcept { return ranks_; }
  /// Throws Error{kUsage} for an axis that no mesh has or that occurs twice.
  void check(const Axes& axes) const;
  /// Returns the part of `rank` along axes that check() has accepted.
  PartOf part(const Axes& axes, std::size_t rank) const;
  /// Returns the ranks that match `where`, ascending. Throws Error{kUsage} for unknown axes and coordinates, and if no
  /// rank matches.
  std::vector<std::uint32_t> select(const Where& where) const;

 private:
  struct Axis {
    std::uint32_t size = 1;
    std::vector<std::uint32_t> coordinates;  ///< Coordinate of each rank.
  };
  void add_axis(const MeshAxis& axis, std::size_t inner);
  const Axis& axis(const std::string& name) const;

  std::size_t ranks_ = 1;
  std::map<std::string, Axis> axes_;
};

using Shape = std::vector<std::uint64_t>;

/// A box of one of the tensors that form a local tensor.
struct Segment {
  std::size_t source = 0;
  Box box;
};

/// The rows of a rank's local tensor: consecutive segments, then padding.
struct LocalRows {
  std::vector<Segment> segments;  ///< No segment is empty.
  std::uint64_t rows = 0;
  /// Shape of a row: the extents of all dimensions but the first.
  Shape row_shape;
  std::uint64_t row_elements = 1;
};

/// Throws Error{kUsage} for a cut that needs another number of tensors or other fields, or that names unknown axes.
void check_cut(const Cut& cut, std::size_t tensors, const MeshMap& mesh);

/// Returns the rows of `rank` by the cut. Throws Error{kUsage} for shapes that do not fit the cut or each other.
LocalRows cut_rows(const Cut& cut, std::span<const Shape> shapes, const MeshMap& mesh, std::size_t rank);

/// The state that a LayoutBuilder has collected.
struct BuilderState {
  BuilderState(const std::vector<Mesh>& meshes, std::size_t max);

  /// Returns the index of the tensor with this name. Throws Error{kUsage} for an unknown name.
  std::uint32_t find(std::string_view name) const;
  /// Returns the dtype of the tensors that form one local tensor. Throws Error{kUsage} if they have different dtypes.
  DType common_dtype(const std::vector<std::uint32_t>& tensors) const;
  /// Adds a local tensor that consists of `places` times `rows`. Returns its index.
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

/// Returns the strides, in elements, of the last dimensions of a local tensor: [rows, row_shape...].
std::vector<std::int64_t> row_strides(const LocalRows& rows, std::size_t dims);

}  // namespace sparsecast
