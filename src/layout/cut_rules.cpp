// SPDX-License-Identifier: Apache-2.0
#include "layout/builder_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/utf8.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/layout.hpp"

namespace sparsecast {
namespace {

Cut cut_over(Cut::Rule rule, Axes axes) {
  Cut cut;
  cut.rule = rule;
  cut.axes = std::move(axes);
  return cut;
}

Cut cut_heads(Cut::Rule rule, Axes axes, std::uint64_t query_heads, std::uint64_t kv_heads) {
  Cut cut = cut_over(rule, std::move(axes));
  cut.query_heads = query_heads;
  cut.kv_heads = kv_heads;
  return cut;
}

}  // namespace

Cut Cut::dtensor(std::vector<Placement> placements) {
  Cut cut;
  cut.rule = Rule::kShard;
  cut.placements = std::move(placements);
  return cut;
}

Cut Cut::column_parallel(Axes axes) { return cut_over(Rule::kColumnParallel, std::move(axes)); }

Cut Cut::row_parallel(Axes axes) { return cut_over(Rule::kRowParallel, std::move(axes)); }

Cut Cut::vocab_parallel(Axes axes, std::uint64_t multiple) {
  Cut cut = cut_over(Rule::kVocabParallel, std::move(axes));
  cut.multiple = multiple;
  return cut;
}

Cut Cut::linear_qkv(Axes axes, std::uint64_t query_heads, std::uint64_t kv_groups) {
  return cut_heads(Rule::kLinearQkv, std::move(axes), query_heads, kv_groups);
}

Cut Cut::qkv_proj(Axes axes, std::uint64_t query_heads, std::uint64_t kv_heads) {
  return cut_heads(Rule::kQkvProj, std::move(axes), query_heads, kv_heads);
}

Experts Experts::in_order(Axes axes, std::uint32_t count) {
  Experts experts;
  experts.axes = std::move(axes);
  experts.physical_to_logical.resize(count);
  std::iota(experts.physical_to_logical.begin(), experts.physical_to_logical.end(), 0u);
  return experts;
}

Where stage_of(const std::string& axis, const std::vector<std::vector<std::uint32_t>>& stages, std::uint32_t layer) {
  AxisCondition condition{axis, {}};
  for (std::uint32_t s = 0; s < stages.size(); ++s) {
    if (std::find(stages[s].begin(), stages[s].end(), layer) != stages[s].end()) condition.coordinates.push_back(s);
  }
  if (condition.coordinates.empty()) {
    throw Error(ErrorCode::kUsage, fmt::format("no pipeline stage has layer {}", layer),
                fmt::format("axis '{}'", excerpt(axis)));
  }
  return {condition};
}

namespace {

struct RowRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

[[noreturn]] void refuse(const std::string& fault) { throw Error(ErrorCode::kUsage, fault); }

RowRange even_part(std::uint64_t size, PartOf part, const char* what) {
  if (size % part.count != 0) refuse(fmt::format("{} {} cannot be cut into {} equal parts", size, what, part.count));
  const std::uint64_t each = size / part.count;
  return {part.index * each, part.index * each + each};
}

/// Returns the part of the range that torch.chunk gives.
RowRange chunk(RowRange range, PartOf part) {
  const std::uint64_t size = range.end - range.begin;
  const std::uint64_t each = size / part.count + (size % part.count != 0 ? 1 : 0);
  const std::uint64_t begin = each != 0 && part.index > size / each ? size : part.index * each;
  return {range.begin + begin, range.begin + std::min(size, begin + each)};
}

std::uint64_t rows_of(const Shape& shape) {
  if (shape.empty()) refuse("a scalar has no rows to cut");
  return shape[0];
}

Box box_of_rows(const Shape& shape, RowRange rows) {
  Box box = whole_box(shape);
  if (shape.empty()) return box;
  box.offset[0] = rows.begin;
  box.extent[0] = rows.end - rows.begin;
  return box;
}

Box shard_box(const Cut& cut, const Shape& shape, const MeshMap& mesh, std::size_t rank) {
  Box box = whole_box(shape);
  for (const Placement& placement : cut.placements) {
    const std::size_t d = placement.dim;
    if (d >= shape.size()) refuse(fmt::format("Shard({}) of a tensor of {} dimensions", d, shape.size()));
    const RowRange range = chunk({box.offset[d], box.offset[d] + box.extent[d]}, mesh.part(placement.axes, rank));
    box.offset[d] = range.begin;
    box.extent[d] = range.end - range.begin;
  }
  return box;
}

Box column_slice(const Shape& shape, PartOf part) {
  if (shape.size() < 2) refuse(fmt::format("row-parallel cuts dimension 1, the tensor has {}", shape.size()));
  const RowRange columns = even_part(shape[1], part, "columns");
  Box box = whole_box(shape);
  box.offset[1] = columns.begin;
  box.extent[1] = columns.end - columns.begin;
  return box;
}

Box vocab_box(const Shape& shape, PartOf part, std::uint64_t multiple, std::uint64_t& rows) {
  const std::uint64_t vocabulary = rows_of(shape);
  if (vocabulary > TensorTable::kMaxElements) refuse("the vocabulary is too large");
  const std::uint64_t padded = (vocabulary + multiple - 1) / multiple * multiple;
  const RowRange mine = even_part(padded, part, "rows of the padded vocabulary");
  rows = mine.end - mine.begin;
  return box_of_rows(shape, {std::min(mine.begin, vocabulary), std::min(mine.end, vocabulary)});
}

/// Returns the rows of one attention head. Throws for shapes that are not those of q, k and v.
std::uint64_t head_rows(const Cut& cut, std::span<const Shape> qkv) {
  const std::uint64_t kv_rows = rows_of(qkv[1]);
  if (kv_rows % cut.kv_heads != 0) refuse(fmt::format("{} rows of k are not {} heads", kv_rows, cut.kv_heads));
  const std::uint64_t each = kv_rows / cut.kv_heads;
  if (rows_of(qkv[2]) != kv_rows) refuse(fmt::format("k has {} rows, v {}", kv_rows, rows_of(qkv[2])));
  if (rows_of(qkv[0]) / cut.query_heads != each || rows_of(qkv[0]) % cut.query_heads != 0) {
    refuse(fmt::format("{} rows of q are not {} heads of {}", rows_of(qkv[0]), cut.query_heads, each));
  }
  return each;
}

/// Appends rows in the order of Megatron-core, [group][its query heads, k, v][head], whose rows are cut evenly.
void linear_qkv(const Cut& cut, std::span<const Shape> qkv, PartOf part, LocalRows& out) {
  const std::uint64_t head = head_rows(cut, qkv);
  const std::uint64_t queries = cut.query_heads / cut.kv_heads * head;
  const std::uint64_t group = queries + 2 * head;
  const RowRange mine = even_part(cut.kv_heads * group, part, "rows of linear_qkv");
  const std::uint64_t starts[4] = {0, queries, queries + head, group};
  for (std::uint64_t g = mine.begin / group; g * group < mine.end; ++g) {
    for (std::size_t k = 0; k < 3; ++k) {
      const std::uint64_t begin = std::max(mine.begin, g * group + starts[k]);
      const std::uint64_t end = std::min(mine.end, g * group + starts[k + 1]);
      if (begin >= end) continue;
      const std::uint64_t skipped = begin - (g * group + starts[k]);
      const std::uint64_t row = g * (starts[k + 1] - starts[k]) + skipped;
      out.segments.push_back({k, box_of_rows(qkv[k], {row, row + end - begin})});
    }
  }
}

void qkv_proj(const Cut& cut, std::span<const Shape> qkv, PartOf part, LocalRows& out) {
  const std::uint64_t head = head_rows(cut, qkv);
  const RowRange queries = even_part(cut.query_heads, part, "query heads");
  RowRange keys;
  if (part.count <= cut.kv_heads) {
    keys = even_part(cut.kv_heads, part, "KV heads");
  } else {
    if (part.count % cut.kv_heads != 0) {
      refuse(fmt::format("{} KV heads cannot be repeated evenly over {} parts", cut.kv_heads, part.count));
    }
    const std::uint64_t mine = part.index / (part.count / cut.kv_heads);
    keys = {mine, mine + 1};
  }
  out.segments.push_back({0, box_of_rows(qkv[0], {queries.begin * head, queries.end * head})});
  for (std::size_t k = 1; k < 3; ++k) {
    out.segments.push_back({k, box_of_rows(qkv[k], {keys.begin * head, keys.end * head})});
  }
}

void check_same_rows(LocalRows& out) {
  for (std::size_t s = 0; s < out.segments.size(); ++s) {
    const Shape& extent = out.segments[s].box.extent;
    const Shape row(extent.empty() ? extent.end() : extent.begin() + 1, extent.end());
    if (s == 0) {
      out.row_shape = row;
    } else if (extent.empty() || row != out.row_shape) {
      refuse(fmt::format("tensors of rows [{}] and [{}] cannot be one local tensor", fmt::join(out.row_shape, ", "),
                         fmt::join(row, ", ")));
    }
  }
  out.row_elements = Box{{}, out.row_shape}.elements();
}

}  // namespace

void check_cut(const Cut& cut, std::size_t tensors, const MeshMap& mesh) {
  mesh.check(cut.axes);
  for (const Placement& placement : cut.placements) mesh.check(placement.axes);
  const bool heads = cut.rule == Cut::Rule::kLinearQkv || cut.rule == Cut::Rule::kQkvProj;
  const bool one = cut.rule == Cut::Rule::kShard || cut.rule == Cut::Rule::kVocabParallel;
  if (tensors == 0) refuse("a local tensor of no canonical ones");
  if (one && tensors != 1) refuse(fmt::format("this rule cuts one tensor, not {}", tensors));
  if (heads && tensors != 3) refuse(fmt::format("this rule needs q, k and v, not {} tensors", tensors));
  if (heads && (cut.kv_heads == 0 || cut.query_heads == 0 || cut.query_heads % cut.kv_heads != 0)) {
    refuse(fmt::format("{} query heads are no multiple of {} KV heads", cut.query_heads, cut.kv_heads));
  }
  if (cut.multiple == 0 || cut.multiple > TensorTable::kMaxElements) {
    refuse(fmt::format("rows cannot be padded to a multiple of {}", cut.multiple));
  }
}

LocalRows cut_rows(const Cut& cut, std::span<const Shape> shapes, const MeshMap& mesh, std::size_t rank) {
  LocalRows out;
  const PartOf part = mesh.part(cut.axes, rank);
  std::uint64_t padded_rows = 0;
  switch (cut.rule) {
    case Cut::Rule::kReplicate:
      for (std::size_t k = 0; k < shapes.size(); ++k) out.segments.push_back({k, whole_box(shapes[k])});
      break;
    case Cut::Rule::kShard:
      out.segments.push_back({0, shard_box(cut, shapes[0], mesh, rank)});
      break;
    case Cut::Rule::kColumnParallel:
      for (std::size_t k = 0; k < shapes.size(); ++k) {
        out.segments.push_back({k, box_of_rows(shapes[k], even_part(rows_of(shapes[k]), part, "rows"))});
      }
      break;
    case Cut::Rule::kRowParallel:
      for (std::size_t k = 0; k < shapes.size(); ++k) out.segments.push_back({k, column_slice(shapes[k], part)});
      break;
    case Cut::Rule::kVocabParallel:
      out.segments.push_back({0, vocab_box(shapes[0], part, cut.multiple, padded_rows)});
      break;
    case Cut::Rule::kLinearQkv:
      linear_qkv(cut, shapes, part, out);
      break;
    case Cut::Rule::kQkvProj:
      qkv_proj(cut, shapes, part, out);
      break;
  }
  check_same_rows(out);
  for (const Segment& segment : out.segments) out.rows += segment.box.extent.empty() ? 1 : segment.box.extent[0];
  out.rows = std::max(out.rows, padded_rows);
  std::erase_if(out.segments, [](const Segment& segment) { return segment.box.elements() == 0; });
  return out;
}

}  // namespace sparsecast
