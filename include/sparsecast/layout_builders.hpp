#pragma once

// Makes the layout of all ranks of a trainer or an engine from the rules by which frameworks cut tensors: FSDP2 and
// DTensor, Megatron-core, SGLang and vLLM. Layout files (docs/layout-format.md) say the same things in JSON.

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

/// Coordinates of the ranks, the slowest axis first: on {pp, dp, tp} rank ((pp * DP) + dp) * TP + tp has (pp, dp, tp).
using Mesh = std::vector<MeshAxis>;

/// Axes that cut as one, the slowest first: on {dp, tp} a rank is part dp * TP + tp of DP * TP. None: not cut.
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

/// How a local tensor is made of canonical ones. "Rows" are dimension 0. A local tensor of several canonical ones has
/// their parts one after another along the rows; all other dimensions agree.
struct SPARSECAST_API Cut {
  enum class Rule {
    kReplicate,       ///< Whole tensors.
    kShard,           ///< `placements`.
    kColumnParallel,  ///< Equal parts of the rows: each tensor's part after the other's.
    kRowParallel,     ///< Equal parts of dimension 1.
    kVocabParallel,   ///< Rows padded to a multiple of `multiple`, then equal parts.
    kLinearQkv,       ///< Of q, k, v. For each KV group its query heads, k and v; equal parts of that.
    kQkvProj,         ///< Of q, k, v: this part's query heads, then its KV heads; those repeat when parts are more.
  };

  Rule rule = Rule::kReplicate;
  Axes axes;
  std::vector<Placement> placements;
  std::uint64_t multiple = 1;
  std::uint64_t query_heads = 0;
  std::uint64_t kv_heads = 0;  ///< KV groups.

  /// Whole tensors; of several: SGLang's fused_qkv_a_proj_with_mqa.
  static Cut replicate() { return {}; }
  /// FSDP2: Shard(0) over these axes; HSDP names only the axes that shard.
  static Cut fsdp2(Axes axes) { return dtensor({{0, std::move(axes)}}); }
  /// Placements are applied in this order, each to what the one before has left. FSDP2 over TP cuts what TP has left
  /// (_StridedShard), so TP comes first. Axes without a placement replicate.
  static Cut dtensor(std::vector<Placement> placements);
  /// ColumnParallelLinear; of several tensors MergedColumnParallelLinear: gate_up_proj, and Megatron's linear_fc1.
  static Cut column_parallel(Axes axes);
  /// RowParallelLinear.
  static Cut row_parallel(Axes axes);
  /// VocabParallelEmbedding. `multiple` of the padded rows: 64 in SGLang and vLLM, make_vocab_size_divisible_by * TP in
  /// Megatron.
  static Cut vocab_parallel(Axes axes, std::uint64_t multiple);
  static Cut gate_up(Axes axes) { return column_parallel(std::move(axes)); }
  /// Megatron's linear_qkv. With more parts than KV groups a part holds a piece of a group, as Megatron-core does,
  /// which gathers activations then; nothing is held twice.
  static Cut linear_qkv(Axes axes, std::uint64_t query_heads, std::uint64_t kv_groups);
  /// QKVParallelLinear of SGLang and vLLM.
  static Cut qkv_proj(Axes axes, std::uint64_t query_heads, std::uint64_t kv_heads);
};

/// How the experts of a layer are spread.
struct Experts {
  Axes axes;  ///< Each part holds as many experts as the others, in order.
  /// The expert in each place, over all parts: redundant experts occur several times (EPLB's physical to logical map).
  std::vector<std::uint32_t> physical_to_logical;
  /// One local tensor [experts here, rows, columns]; otherwise one a place.
  bool stacked = true;
  /// Each expert's matrix stored [columns, rows], as for grouped GEMM.
  bool transposed = false;

  /// Experts 0 to count - 1, each once.
  static Experts in_order(Axes axes, std::uint32_t count);
};

/// Ranks of the pipeline stage that holds `layer`: `stages[s]` lists the layers of the ranks with coordinate s on
/// `axis`, those of all their virtual stages. Throws Error{kUsage} when no stage has it.
SPARSECAST_API Where stage_of(const std::string& axis, const std::vector<std::vector<std::uint32_t>>& stages,
                              std::uint32_t layer);

/// Collects tensors and local tensors, and makes the layout. Every function throws Error{kUsage} that names the tensor
/// for names that are not known, dimensions that a rule cannot cut evenly, shapes that do not fit each other, and more
/// shards or local tensors than the limit.
class SPARSECAST_API LayoutBuilder {
 public:
  /// Several meshes are several ways to name the same ranks (Megatron's of attention and of experts): all have equally
  /// many, and an axis that occurs in several has the same coordinates in each. At most `max_shards` shards are made,
  /// and as many local tensors.
  explicit LayoutBuilder(const std::vector<Mesh>& meshes, std::size_t max_shards = Layout::kMaxShards);
  ~LayoutBuilder();
  LayoutBuilder(LayoutBuilder&&) noexcept;
  LayoutBuilder& operator=(LayoutBuilder&&) noexcept;

  std::size_t ranks() const noexcept;

  /// Names the machines: rank r is on "PREFIXn", n = r / ranks_per_node.
  LayoutBuilder& nodes(const std::string& prefix, std::size_t ranks_per_node);
  /// Adds a canonical tensor.
  LayoutBuilder& tensor(TensorSpec spec);
  LayoutBuilder& tie(const std::string& alias, const std::string& original);

  /// Adds a local tensor to every rank of `where`. Ranks that an uneven cut leaves nothing get an empty one.
  LayoutBuilder& add(const std::string& local, const std::vector<std::string>& tensors, const Cut& cut,
                     const Where& where = {});
  /// Adds experts' local tensors: in each of `tensors`, "{expert}" is the expert's number; without it the tensor is
  /// canonically stacked, and its dimension 0 is the expert. Not stacked locally, `local` has "{expert}" too, the
  /// number of the place over all parts. `cut` cuts each expert's matrix (expert-TP); not kShard.
  LayoutBuilder& add_experts(const std::string& local, const std::vector<std::string>& tensors, const Cut& cut,
                             const Experts& experts, const Where& where = {});

  /// Ends the building: makes the layout of what has been added.
  Layout build();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsecast
