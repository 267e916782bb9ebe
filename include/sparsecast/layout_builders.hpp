// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes the layout of all ranks of a trainer or an engine from the rules by which frameworks cut tensors: FSDP2 and
// DTensor, Megatron-core, SGLang and vLLM. Layout files (docs/layout-format.md) express the same rules in JSON.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sparsecast/export.hpp"
#include "sparsecast/layout.hpp"

namespace sparsecast {

struct MeshAxis {
  std::string name;  ///< "pp", "dp", "tp", "ep", ...
  std::uint32_t size = 1;
};

/// Axes of a mesh of ranks, the slowest first: on {pp, dp, tp} rank ((pp * DP) + dp) * TP + tp has (pp, dp, tp).
using Mesh = std::vector<MeshAxis>;

/// Axes that together cut a tensor, the slowest first: on {dp, tp} a rank is part dp * TP + tp of DP * TP. Empty: no
/// cut.
using Axes = std::vector<std::string>;

/// Ranks with one of these coordinates on an axis.
struct AxisCondition {
  std::string axis;
  std::vector<std::uint32_t> coordinates;
};
/// Ranks that meet all conditions; all ranks when there are none.
using Where = std::vector<AxisCondition>;

/// DTensor's Shard(dim): chunks of ceil(n / parts) elements, so later parts may be smaller or empty (torch.chunk).
struct Placement {
  std::size_t dim = 0;
  Axes axes;
};

/// Rule by which a local tensor is made of canonical tensors. "Rows" are dimension 0. A local tensor of several
/// canonical tensors holds their parts one after another along the rows; all other dimensions must agree.
struct SPARSECAST_API Cut {
  enum class Rule {
    kReplicate,       ///< Whole tensors.
    kShard,           ///< `placements`.
    kColumnParallel,  ///< Equal parts of the rows; parts of several tensors follow one another.
    kRowParallel,     ///< Equal parts of dimension 1.
    kVocabParallel,   ///< Rows padded to a multiple of `multiple`, then equal parts.
    kLinearQkv,       ///< Tensors q, k, v: each KV group's query heads, k and v; equal parts of these.
    kQkvProj,         ///< Tensors q, k, v: a part's query heads, then its KV heads, repeated if fewer than parts.
  };

  Rule rule = Rule::kReplicate;
  Axes axes;
  std::vector<Placement> placements;
  std::uint64_t multiple = 1;
  std::uint64_t query_heads = 0;
  std::uint64_t kv_heads = 0;  ///< KV groups.

  /// Whole tensors; for several tensors this is SGLang's fused_qkv_a_proj_with_mqa.
  static Cut replicate() { return {}; }
  /// FSDP2: Shard(0) over these axes; HSDP names only the axes that shard.
  static Cut fsdp2(Axes axes) { return dtensor({{0, std::move(axes)}}); }
  /// Placements applied in this order, each to the part that the previous one has left. FSDP2 over TP cuts TP's parts
  /// (_StridedShard), so TP comes first. Axes without a placement replicate.
  static Cut dtensor(std::vector<Placement> placements);
  /// ColumnParallelLinear; for several tensors MergedColumnParallelLinear (gate_up_proj) and Megatron's linear_fc1.
  static Cut column_parallel(Axes axes);
  /// RowParallelLinear.
  static Cut row_parallel(Axes axes);
  /// VocabParallelEmbedding. Rows are padded to a multiple of `multiple`: 64 in SGLang and vLLM,
  /// make_vocab_size_divisible_by * TP in Megatron.
  static Cut vocab_parallel(Axes axes, std::uint64_t multiple);
  static Cut gate_up(Axes axes) { return column_parallel(std::move(axes)); }
  /// Megatron's linear_qkv. With more parts than KV groups, each part holds a piece of a group and nothing is
  /// replicated, as in Megatron-core, which then gathers activations.
  static Cut linear_qkv(Axes axes, std::uint64_t query_heads, std::uint64_t kv_groups);
  /// QKVParallelLinear of SGLang and vLLM.
  static Cut qkv_proj(Axes axes, std::uint64_t query_heads, std::uint64_t kv_heads);
};

/// Distribution of a layer's experts over ranks.
struct Experts {
  Axes axes;  ///< Axes that divide the experts into equal parts, in order.
  /// Logical expert in each physical place, over all parts. Redundant experts occur several times (EPLB's map).
  std::vector<std::uint32_t> physical_to_logical;
  /// Whether a rank's experts are one local tensor [experts, rows, columns]; otherwise there is one tensor a place.
  bool stacked = true;
  /// Whether each expert's matrix is stored as [columns, rows], as for grouped GEMM.
  bool transposed = false;

  /// Returns the distribution of experts 0 to count - 1, each once.
  static Experts in_order(Axes axes, std::uint32_t count);
};

/// Returns the ranks of the pipeline stage that holds `layer`. `stages[s]` lists the layers of all virtual stages of
/// the ranks with coordinate s on `axis`. Throws Error{kUsage} when no stage has the layer.
SPARSECAST_API Where stage_of(const std::string& axis, const std::vector<std::vector<std::uint32_t>>& stages,
                              std::uint32_t layer);

/// Collects tensors and local tensors, and makes the layout. Every function throws Error{kUsage} that names the tensor
/// for names that are not known, dimensions that a rule cannot cut evenly, shapes that do not fit each other, and more
/// shards or local tensors than the limit.
class SPARSECAST_API LayoutBuilder {
 public:
  /// Takes one or more meshes over the same ranks (Megatron has one for attention and one for experts). All must have
  /// the same number of ranks, and an axis that occurs in several meshes has the same coordinates in each. At most
  /// `max_shards` shards and as many local tensors are made.
  explicit LayoutBuilder(const std::vector<Mesh>& meshes, std::size_t max_shards = Layout::kMaxShards);
  ~LayoutBuilder();
  LayoutBuilder(LayoutBuilder&&) noexcept;
  LayoutBuilder& operator=(LayoutBuilder&&) noexcept;

  std::size_t ranks() const noexcept;

  /// Names the machines: rank r is on "PREFIXn" with n = r / ranks_per_node.
  LayoutBuilder& nodes(const std::string& prefix, std::size_t ranks_per_node);
  /// Adds a canonical tensor.
  LayoutBuilder& tensor(TensorSpec spec);
  LayoutBuilder& tie(const std::string& alias, const std::string& original);

  /// Adds a local tensor to every rank of `where`. Ranks without elements, because of an uneven cut, get an empty one.
  LayoutBuilder& add(const std::string& local, const std::vector<std::string>& tensors, const Cut& cut,
                     const Where& where = {});
  /// Adds the experts' local tensors. In each of `tensors`, "{expert}" is replaced by the expert's number; a canonical
  /// tensor without it is stacked, and its dimension 0 is the expert. When the experts are not stacked locally, `local`
  /// has "{expert}" as well, which is replaced by the number of the place over all parts. `cut` cuts each expert's
  /// matrix (expert-TP), and must not be kShard.
  LayoutBuilder& add_experts(const std::string& local, const std::vector<std::string>& tensors, const Cut& cut,
                             const Experts& experts, const Where& where = {});

  /// Returns the layout of everything that has been added. The builder cannot be used afterwards.
  Layout build();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsecast
