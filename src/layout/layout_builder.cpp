// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/layout.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/utf8.hpp"
#include "layout/builder_state.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

std::string tensor_context(const std::string& name) { return fmt::format("tensor '{}'", excerpt(name)); }

}  // namespace

BuilderState::BuilderState(const std::vector<Mesh>& meshes, std::size_t max)
    : mesh(meshes), max_shards(std::min(max, Layout::kMaxShards)), ranks(mesh.ranks()) {}

std::uint32_t BuilderState::find(std::string_view name) const {
  const auto found = by_name.find(name);
  if (found == by_name.end()) {
    throw Error(ErrorCode::kUsage, fmt::format("there is no tensor '{}'", excerpt(name)));
  }
  return found->second;
}

DType BuilderState::common_dtype(const std::vector<std::uint32_t>& tensors) const {
  const DType first = specs[tensors.front()].dtype;
  for (const std::uint32_t tensor : tensors) {
    if (specs[tensor].dtype == first) continue;
    throw Error(ErrorCode::kUsage, "tensors of several dtypes cannot be one local tensor",
                tensor_context(specs[tensor].name));
  }
  return first;
}

std::uint32_t BuilderState::add_local(RankLayout& rank, std::string name, DType dtype, const LocalRows& rows,
                                      std::uint64_t places) {
  const std::uint64_t elements = Box{{}, {places, rows.rows, rows.row_elements}}.elements();
  if (elements > TensorTable::kMaxElements) throw Error(ErrorCode::kUsage, "a local tensor of more than 2^46 elements");
  if (++locals > max_shards) {
    throw Error(ErrorCode::kUsage, fmt::format("the layout has more than {} local tensors", max_shards));
  }
  rank.tensors.push_back({std::move(name), dtype, elements});
  return static_cast<std::uint32_t>(rank.tensors.size() - 1);
}

void BuilderState::add_shard(RankLayout& rank, Shard shard) {
  if (++shards > max_shards) {
    throw Error(ErrorCode::kUsage, fmt::format("the layout has more than {} shards", max_shards));
  }
  rank.shards.push_back(std::move(shard));
}

std::vector<std::int64_t> row_strides(const LocalRows& rows, std::size_t dims) {
  std::vector<std::int64_t> strides(dims, 1);
  for (std::size_t d = dims; d-- > 1;) {
    strides[d - 1] = strides[d] * static_cast<std::int64_t>(rows.row_shape[d - 1]);
  }
  return strides;
}

LayoutBuilder::LayoutBuilder(const std::vector<Mesh>& meshes, std::size_t max_shards)
    : state_(std::make_unique<State>(meshes, max_shards)) {}
LayoutBuilder::~LayoutBuilder() = default;
LayoutBuilder::LayoutBuilder(LayoutBuilder&&) noexcept = default;
LayoutBuilder& LayoutBuilder::operator=(LayoutBuilder&&) noexcept = default;

std::size_t LayoutBuilder::ranks() const noexcept { return state_->ranks.size(); }

LayoutBuilder& LayoutBuilder::nodes(const std::string& prefix, std::size_t ranks_per_node) {
  if (ranks_per_node == 0) throw Error(ErrorCode::kUsage, "nodes of no ranks");
  for (std::size_t r = 0; r < ranks(); ++r) state_->ranks[r].node = fmt::format("{}{}", prefix, r / ranks_per_node);
  return *this;
}

LayoutBuilder& LayoutBuilder::tensor(TensorSpec spec) {
  if (state_->specs.size() >= TensorTable::kMaxTensors) throw Error(ErrorCode::kUsage, "too many tensors");
  // TensorTable's constructor checks the rules and names the tensor that breaks one.
  const TensorTable alone({spec});
  if (spec.shape.size() > kMaxLayoutDims) {
    throw Error(ErrorCode::kUsage,
                fmt::format("{} dimensions; a layout has at most {}", spec.shape.size(), kMaxLayoutDims),
                tensor_context(spec.name));
  }
  const auto index = static_cast<std::uint32_t>(state_->specs.size());
  if (!state_->by_name.emplace(spec.name, index).second) {
    throw Error(ErrorCode::kUsage, "the name occurs twice", tensor_context(spec.name));
  }
  state_->specs.push_back(std::move(spec));
  return *this;
}

LayoutBuilder& LayoutBuilder::tie(const std::string& alias, const std::string& original) {
  state_->find(alias);
  state_->find(original);
  state_->ties.push_back({alias, original});
  return *this;
}

LayoutBuilder& LayoutBuilder::add(const std::string& local, const std::vector<std::string>& tensors, const Cut& cut,
                                  const Where& where) {
  State& state = *state_;
  try {
    check_cut(cut, tensors.size(), state.mesh);
    std::vector<std::uint32_t> sources;
    std::vector<Shape> shapes;
    for (const std::string& name : tensors) {
      sources.push_back(state.find(name));
      shapes.push_back(state.specs[sources.back()].shape);
    }
    const DType dtype = state.common_dtype(sources);
    for (const std::uint32_t r : state.mesh.select(where)) {
      const LocalRows rows = cut_rows(cut, shapes, state.mesh, r);
      const std::uint32_t index = state.add_local(state.ranks[r], local, dtype, rows, 1);
      std::uint64_t first = 0;
      for (const Segment& segment : rows.segments) {
        state.add_shard(state.ranks[r], {sources[segment.source], segment.box, index, first,
                                         row_strides(rows, segment.box.extent.size())});
        first += segment.box.elements();
      }
    }
  } catch (const Error& error) {
    throw error.within(fmt::format("local tensor '{}'", excerpt(local)));
  }
  return *this;
}

Layout LayoutBuilder::build() {
  return Layout(TensorTable(std::move(state_->specs)), std::move(state_->ranks), std::move(state_->ties));
}

}  // namespace sparsecast
