// SPDX-License-Identifier: Apache-2.0
#include "layout/builder_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/utf8.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

[[noreturn]] void refuse(const std::string& fault, const std::string& axis = {}) {
  throw Error(ErrorCode::kUsage, fault, axis.empty() ? std::string() : fmt::format("axis '{}'", excerpt(axis)));
}

std::size_t size_of(const Mesh& mesh) {
  std::size_t size = 1;
  std::set<std::string> names;
  for (const MeshAxis& axis : mesh) {
    if (axis.size == 0 || axis.name.empty()) refuse("an axis without a name or of size 0", axis.name);
    if (!names.insert(axis.name).second) refuse("the axis occurs twice in a mesh", axis.name);
    if (axis.size > Layout::kMaxRanks / size) refuse("the mesh has too many ranks", axis.name);
    size *= axis.size;
  }
  return size;
}

// Most axes of a mesh, and most meshes. They are limited because each axis stores a number for every rank.
constexpr std::size_t kMaxAxes = 16;

}  // namespace

MeshMap::MeshMap(const std::vector<Mesh>& meshes) {
  if (meshes.empty() || meshes.size() > kMaxAxes)
    refuse(fmt::format("{} meshes; 1 to {} are possible", meshes.size(), kMaxAxes));
  ranks_ = size_of(meshes.front());
  for (const Mesh& mesh : meshes) {
    if (mesh.size() > kMaxAxes)
      refuse(fmt::format("a mesh of {} axes; at most {} are possible", mesh.size(), kMaxAxes));
    if (const std::size_t size = size_of(mesh); size != ranks_) {
      refuse(fmt::format("a mesh has {} ranks, another {}", size, ranks_));
    }
    std::size_t inner = ranks_;
    for (const MeshAxis& axis : mesh) {
      inner /= axis.size;
      add_axis(axis, inner);
    }
  }
}

void MeshMap::add_axis(const MeshAxis& axis, std::size_t inner) {
  std::vector<std::uint32_t> coordinates(ranks_);
  for (std::size_t r = 0; r < ranks_; ++r) coordinates[r] = static_cast<std::uint32_t>(r / inner % axis.size);
  const auto [found, added] = axes_.emplace(axis.name, Axis{axis.size, coordinates});
  if (!added && (found->second.size != axis.size || found->second.coordinates != coordinates)) {
    refuse("ranks have other coordinates on it in another mesh", axis.name);
  }
}

const MeshMap::Axis& MeshMap::axis(const std::string& name) const {
  const auto found = axes_.find(name);
  if (found == axes_.end()) refuse("no mesh has this axis", name);
  return found->second;
}

void MeshMap::check(const Axes& axes) const {
  std::set<std::string> names;
  std::size_t parts = 1;
  for (const std::string& name : axes) {
    if (!names.insert(name).second) refuse("the axis cuts twice", name);
    if (axis(name).size > Layout::kMaxRanks / parts) refuse("the axes have too many parts", name);
    parts *= axis(name).size;
  }
}

PartOf MeshMap::part(const Axes& axes, std::size_t rank) const {
  PartOf part;
  for (const std::string& name : axes) {
    const Axis& found = axis(name);
    part.index = part.index * found.size + found.coordinates[rank];
    part.count *= found.size;
  }
  return part;
}

std::vector<std::uint32_t> MeshMap::select(const Where& where) const {
  std::vector<bool> selected(ranks_, true);
  for (const AxisCondition& condition : where) {
    const Axis& found = axis(condition.axis);
    std::vector<bool> wanted(found.size, false);
    for (const std::uint32_t coordinate : condition.coordinates) {
      if (coordinate >= found.size) {
        refuse(fmt::format("coordinate {} on an axis of size {}", coordinate, found.size), condition.axis);
      }
      wanted[coordinate] = true;
    }
    for (std::size_t r = 0; r < ranks_; ++r) selected[r] = selected[r] && wanted[found.coordinates[r]];
  }
  std::vector<std::uint32_t> ranks;
  for (std::size_t r = 0; r < ranks_; ++r) {
    if (selected[r]) ranks.push_back(static_cast<std::uint32_t>(r));
  }
  if (ranks.empty()) refuse("no rank meets the conditions");
  return ranks;
}

}  // namespace sparsecast
