// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sparsecast/layout_builders.hpp"

namespace sparsecast {

/// Part `index` of `count`.
struct PartOf {
  std::uint64_t index = 0;
  std::uint64_t count = 1;
};

/// The coordinates of every rank on every axis.
class MeshMap {
 public:
  /// Throws Error{kUsage} for meshes that are none, or of more than Layout::kMaxRanks ranks.
  explicit MeshMap(const std::vector<Mesh>& meshes);

  std::size_t ranks() const noexcept { return ranks_; }
  /// Throws Error{kUsage} for an axis that no mesh has, or the same one twice.
  void check(const Axes& axes) const;
  /// Returns the part of `rank` along axes that check() has let through.
  PartOf part(const Axes& axes, std::size_t rank) const;
  /// The ranks of `where`, ascending. Throws Error{kUsage} for unknown axes and coordinates, and when there are none.
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

}  // namespace sparsecast
