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

/// Names one part of something that is divided into `count` parts: part number `index`.
struct PartOf {
  std::uint64_t index = 0;
  std::uint64_t count = 1;
};

/// The coordinate of every rank on every axis of one or more meshes. All meshes have the same ranks.
class MeshMap {
 public:
  /// Takes the axes of `meshes`, which must all have the same number of ranks. Throws Error{kUsage} for invalid meshes,
  /// and for meshes of more than Layout::kMaxRanks ranks.
  explicit MeshMap(const std::vector<Mesh>& meshes);

  std::size_t ranks() const noexcept { return ranks_; }
  /// Throws Error{kUsage} for an axis that no mesh has, for an axis that occurs twice in `axes`, and for axes that give
  /// too many parts.
  void check(const Axes& axes) const;
  /// Returns the part that `rank` has of something that is divided along `axes`, where the first axis is the outermost.
  /// check() must have accepted the axes.
  PartOf part(const Axes& axes, std::size_t rank) const;
  /// Returns the ranks that meet all conditions of `where`, in ascending order. Throws Error{kUsage} for an unknown
  /// axis or coordinate, and if no rank meets the conditions.
  std::vector<std::uint32_t> select(const Where& where) const;

 private:
  struct Axis {
    std::uint32_t size = 1;
    std::vector<std::uint32_t> coordinates;  ///< Coordinate of each rank on this axis.
  };
  void add_axis(const MeshAxis& axis, std::size_t inner);
  const Axis& axis(const std::string& name) const;

  std::size_t ranks_ = 1;
  std::map<std::string, Axis> axes_;
};

using Shape = std::vector<std::uint64_t>;

/// A box of one of the source tensors from which a local tensor is formed. `source` is the number of that source
/// tensor.
struct Segment {
  std::size_t source = 0;
  Box box;
};

/// The rows of a rank's local tensor: its segments one after another, then padding.
struct LocalRows {
  std::vector<Segment> segments;  ///< The segments, in order. None of them is empty.
  /// Number of rows, including padding.
  std::uint64_t rows = 0;
  /// Shape of one row: the extents of all dimensions of the source tensors except the first.
  Shape row_shape;
  std::uint64_t row_elements = 1;
};

/// Throws Error{kUsage} for a cut that does not suit `tensors` source tensors, that sets fields of another kind of cut,
/// or that names unknown axes.
void check_cut(const Cut& cut, std::size_t tensors, const MeshMap& mesh);

/// Returns the rows that `rank` gets when tensors of these shapes are divided by `cut`. Throws Error{kUsage} for shapes
/// that do not fit the cut or each other.
LocalRows cut_rows(const Cut& cut, std::span<const Shape> shapes, const MeshMap& mesh, std::size_t rank);

/// All declarations that a LayoutBuilder has received so far.
struct BuilderState {
  BuilderState(const std::vector<Mesh>& meshes, std::size_t max);

  /// Returns the index in `specs` of the tensor with this name. Throws Error{kUsage} for an unknown name.
  std::uint32_t find(std::string_view name) const;
  /// Returns the dtype of the tensors with these indices. Throws Error{kUsage} if their dtypes differ, because then
  /// they cannot form one local tensor.
  DType common_dtype(const std::vector<std::uint32_t>& tensors) const;
  /// Adds to `rank` a local tensor with room for `places` times the rows `rows`, one after another. Returns the index
  /// of the local tensor in the rank. Throws Error{kUsage} if the tensor or the layout becomes too large.
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

/// Returns the strides, in elements, of the last `dims` dimensions of a local tensor with the shape [rows,
/// row_shape...].
std::vector<std::int64_t> row_strides(const LocalRows& rows, std::size_t dims);

}  // namespace sparsecast
