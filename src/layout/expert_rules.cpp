// SPDX-License-Identifier: Apache-2.0

// Places experts. Every place on a rank is one expert's matrix, cut like any other matrix, in a separate local tensor
// or stacked with others.

#include <fmt/format.h>

#include <algorithm>

#include "core/utf8.hpp"
#include "layout/builder_state.hpp"
#include "layout/name_pattern.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

constexpr std::string_view kExpert = "expert";

/// The canonical tensors of one of the patterns.
struct ExpertSource {
  Shape shape;                         ///< Shape of one expert's matrix.
  bool stacked = false;                ///< True if dimension 0 of the canonical tensor counts the experts.
  std::vector<std::uint32_t> tensors;  ///< Index of the tensor at each place; only one if it is stacked.
};

[[noreturn]] void refuse(const std::string& fault) { throw Error(ErrorCode::kUsage, fault); }

void check_experts(const Cut& cut, const Experts& experts, const MeshMap& mesh, const std::string& local) {
  mesh.check(experts.axes);
  const std::uint64_t parts = mesh.part(experts.axes, 0).count;
  const std::size_t places = experts.physical_to_logical.size();
  if (cut.rule == Cut::Rule::kShard) refuse("DTensor placements cut a stacked tensor, not single experts");
  if (places == 0) refuse("no experts");
  if (places % parts != 0) refuse(fmt::format("{} experts cannot be spread evenly over {} parts", places, parts));
  if (!experts.stacked && !NamePattern(local).uses(kExpert)) refuse("the name of separate experts needs '{expert}'");
}

void check_matrix(const Segment& segment, bool transposed) {
  if (!transposed || segment.box.extent.size() == 2) return;
  refuse(fmt::format("an expert's tensor of {} dimensions cannot be transposed", segment.box.extent.size()));
}

/// Puts experts into the local tensors of a rank.
class ExpertPlacer {
 public:
  ExpertPlacer(const Experts& experts, const std::vector<ExpertSource>& sources, const LocalRows& rows)
      : experts_(experts), sources_(sources), rows_(rows) {}

  /// Adds the shards of a place whose matrix begins at element `first` of a local tensor.
  template <class Add>
  void place(std::size_t place, std::uint32_t local, std::uint64_t first, const Add& add) const {
    std::uint64_t row = 0;
    for (const Segment& segment : rows_.segments) {
      check_matrix(segment, experts_.transposed);
      const ExpertSource& source = sources_[segment.source];
      Shard shard{source.tensors[source.stacked ? 0 : place], segment.box, local, first, {}};
      if (experts_.transposed) {
        shard.strides = {1, static_cast<std::int64_t>(rows_.rows)};
        shard.first += row;
      } else {
        shard.strides = row_strides(rows_, segment.box.extent.size());
        shard.first += row * rows_.row_elements;
      }
      row += segment.box.extent.empty() ? 1 : segment.box.extent[0];
      if (source.stacked) {
        shard.box.offset.insert(shard.box.offset.begin(), experts_.physical_to_logical[place]);
        shard.box.extent.insert(shard.box.extent.begin(), 1);
        shard.strides.insert(shard.strides.begin(), static_cast<std::int64_t>(rows_.rows * rows_.row_elements));
      }
      add(std::move(shard));
    }
  }

 private:
  const Experts& experts_;
  const std::vector<ExpertSource>& sources_;
  const LocalRows& rows_;
};

/// Returns the canonical tensors of a pattern for the experts in `places`.
ExpertSource find_source(const BuilderState& state, const std::string& name, const std::vector<std::uint32_t>& places) {
  const NamePattern pattern(name);
  ExpertSource source;
  source.stacked = !pattern.uses(kExpert);
  if (source.stacked) {
    source.tensors = {state.find(name)};
    const Shape& shape = state.specs[source.tensors[0]].shape;
    const std::uint32_t last = *std::max_element(places.begin(), places.end());
    if (shape.empty() || shape[0] <= last) refuse(fmt::format("tensor '{}' has no expert {}", excerpt(name), last));
    source.shape.assign(shape.begin() + 1, shape.end());
    return source;
  }
  for (const std::uint32_t expert : places) {
    source.tensors.push_back(state.find(pattern.with(kExpert, expert)));
    const Shape& shape = state.specs[source.tensors.back()].shape;
    if (source.tensors.size() == 1) source.shape = shape;
    if (shape != source.shape) refuse(fmt::format("expert {} of '{}' has another shape", expert, excerpt(name)));
  }
  return source;
}

/// Places a rank's share of the experts.
void add_to_rank(BuilderState& state, std::size_t r, const std::string& local, DType dtype, const Experts& experts,
                 const std::vector<ExpertSource>& sources, const LocalRows& rows) {
  RankLayout& rank = state.ranks[r];
  const ExpertPlacer placer(experts, sources, rows);
  const PartOf part = state.mesh.part(experts.axes, r);
  const std::size_t here = experts.physical_to_logical.size() / part.count;
  const NamePattern pattern(experts.stacked ? std::string_view() : std::string_view(local));
  std::uint32_t index = 0;
  if (experts.stacked) index = state.add_local(rank, local, dtype, rows, here);
  for (std::size_t k = 0; k < here; ++k) {
    const std::size_t place = part.index * here + k;
    if (!experts.stacked) {
      index = state.add_local(rank, pattern.with(kExpert, static_cast<std::uint32_t>(place)), dtype, rows, 1);
    }
    const std::uint64_t first = experts.stacked ? k * rows.rows * rows.row_elements : 0;
    placer.place(place, index, first, [&](Shard shard) { state.add_shard(rank, std::move(shard)); });
  }
}

}  // namespace

LayoutBuilder& LayoutBuilder::add_experts(const std::string& local, const std::vector<std::string>& tensors,
                                          const Cut& cut, const Experts& experts, const Where& where) {
  BuilderState& state = *state_;
  try {
    check_cut(cut, tensors.size(), state.mesh);
    check_experts(cut, experts, state.mesh, local);
    std::vector<ExpertSource> sources;
    std::vector<Shape> shapes;
    std::vector<std::uint32_t> all;
    for (const std::string& name : tensors) {
      sources.push_back(find_source(state, name, experts.physical_to_logical));
      shapes.push_back(sources.back().shape);
      all.insert(all.end(), sources.back().tensors.begin(), sources.back().tensors.end());
    }
    const DType dtype = state.common_dtype(all);
    for (const std::uint32_t r : state.mesh.select(where)) {
      add_to_rank(state, r, local, dtype, experts, sources, cut_rows(cut, shapes, state.mesh, r));
    }
  } catch (const Error& error) {
    throw error.within(fmt::format("local tensor '{}'", excerpt(local)));
  }
  return *this;
}

}  // namespace sparsecast
