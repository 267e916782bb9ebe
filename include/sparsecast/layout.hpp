// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sparsecast/delta.hpp"
#include "sparsecast/digest.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/io.hpp"
#include "sparsecast/tensor.hpp"

// A layout describes how one side of a stream, a trainer or an engine, holds canonical tensors: boxes of them, in the
// local tensors of its ranks. docs/fanout.md explains the algebra.

namespace sparsecast {

/// A tensor in a layout has at most this many dimensions.
inline constexpr std::size_t kMaxLayoutDims = 8;

/// A rectangular part of a canonical tensor: elements [offset, offset + extent) in each dimension. A scalar's box has
/// no dimensions and one element. Ends of boxes are below 2^64.
struct SPARSECAST_API Box {
  std::vector<std::uint64_t> offset;
  std::vector<std::uint64_t> extent;

  /// Returns the product of the extents; 0 when an extent is 0, and 2^64 - 1 when the product is larger.
  std::uint64_t elements() const noexcept;
  bool contains(const Box& other) const noexcept;  ///< False for a box of another number of dimensions.
  friend bool operator==(const Box&, const Box&) = default;
  friend auto operator<=>(const Box&, const Box&) = default;
};

/// Returns the box that covers a whole tensor of this shape.
SPARSECAST_API Box whole_box(const std::vector<std::uint64_t>& shape);
/// Returns the intersection of two boxes of one tensor; nullopt when it is empty, or when their numbers of dimensions
/// differ.
SPARSECAST_API std::optional<Box> intersect(const Box& a, const Box& b);
/// Returns text such as "[0:128,64:128]"; "[]" for a scalar.
SPARSECAST_API std::string to_string(const Box& box);

/// A tensor in the memory of a rank: `elements` contiguous elements, aligned to an element.
struct LocalTensor {
  std::string name;  ///< The framework's name, used in errors and tables.
  DType dtype = DType::kBF16;
  std::uint64_t elements = 0;  ///< Number of elements, including padding that no shard covers.
  friend bool operator==(const LocalTensor&, const LocalTensor&) = default;
};

/// A box of a canonical tensor and its location in a local tensor. Element (i, j, ...) of the box, counted from the
/// box's first element, is element first + i * strides[0] + j * strides[1] + ... of the local tensor.
struct Shard {
  std::uint32_t tensor = 0;  ///< Index into the layout's table.
  Box box;
  std::uint32_t local = 0;  ///< Index into the rank's tensors.
  std::uint64_t first = 0;  ///< Index of the box's first element in the local tensor.
  /// Strides in elements, one a dimension, none negative. The strides of dimensions with more than one element must
  /// nest, in any order: each exceeds the largest offset that all smaller ones reach together, as in a slice of a
  /// tensor, transposed or not.
  std::vector<std::int64_t> strides;
  /// Whether this rank knows the bytes that receivers hold, so that it can send the shard (trainer only). False where
  /// another rank has been sending it (mark_bases).
  bool has_base = true;
  friend bool operator==(const Shard&, const Shard&) = default;
};

struct RankLayout {
  std::string node;  ///< Machine name, used to prefer routes within a machine; empty: unknown.
  std::vector<LocalTensor> tensors;
  std::vector<Shard> shards;
  friend bool operator==(const RankLayout&, const RankLayout&) = default;
};

/// Two names of one tensor (tied embeddings, shared draft heads). `alias` holds the elements that are sent for
/// `original`.
struct TiedTensor {
  std::string alias;
  std::string original;
  friend bool operator==(const TiedTensor&, const TiedTensor&) = default;
};

/// The canonical tensors of one side, and their locations in the memory of its ranks. Immutable.
class SPARSECAST_API Layout {
 public:
  static constexpr std::size_t kMaxRanks = std::size_t{1} << 16;
  static constexpr std::size_t kMaxShards = std::size_t{1} << 24;  ///< Maximum over all ranks; also of local tensors.

  /// `table` names every tensor that a shard or a tie refers to. Shards whose local memory overlaps must hold exactly
  /// the same elements. Names that share the same memory must be tied. Several shards may hold the same canonical
  /// elements in memory of their own (copies). Throws Error{kUsage} that names rank and tensor for violations of these
  /// rules and for: empty boxes and boxes outside the tensor, addresses outside the local tensor, strides that do not
  /// nest, the same shard twice, dtypes that differ, ties of different shapes or in a cycle, more than kMaxLayoutDims
  /// dimensions, names that are not UTF-8 of at most 65535 bytes.
  Layout(TensorTable table, std::vector<RankLayout> ranks, std::vector<TiedTensor> ties = {});

  const TensorTable& table() const noexcept { return table_; }
  const std::vector<RankLayout>& ranks() const noexcept { return ranks_; }
  const std::vector<TiedTensor>& ties() const noexcept { return ties_; }
  /// Returns the index of the tensor that is sent for `tensor`: the end of its chain of ties, or itself.
  std::size_t original_of(std::size_t tensor) const { return originals_[tensor]; }
  /// Returns XXH3-128 of the bytes that serialize() compresses. It is equal for equal layouts, independent of the zstd
  /// version.
  const Hash128& hash() const noexcept { return hash_; }

  /// Returns the layout as bytes for exchange between ranks, compressed with zstd.
  Bytes serialize() const;
  /// Parses the output of serialize(). Throws Error{kCorrupt} for malformed bytes (kUnsupported for another version of
  /// the format), before it allocates more than valid bytes can need.
  static Layout parse(ConstBytes bytes);

 private:
  TensorTable table_;
  std::vector<RankLayout> ranks_;
  std::vector<TiedTensor> ties_;
  std::vector<std::uint32_t> originals_;
  Hash128 hash_;
};

/// Return references to the local tensors of a rank, of the layout's dtypes: in host memory, or at these addresses of a
/// device. Throw Error{kUsage} that names rank and tensor unless `tensors` has one entry for each local tensor, of its
/// size.
SPARSECAST_API std::vector<TensorRef> refs_to(const Layout& layout, std::size_t rank,
                                              const std::vector<MutableBytes>& tensors);
SPARSECAST_API std::vector<TensorRef> refs_to(const Layout& layout, std::size_t rank,
                                              const std::vector<void*>& d_tensors, int device);

// Makes the layout of all ranks of a trainer or an engine from the rules by which frameworks cut tensors: FSDP2 and
// DTensor, Megatron-core, SGLang and vLLM. Layout files (docs/layout-format.md) express the same rules in JSON.

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

/// Options for reading a layout file.
struct LayoutFileOptions {
  /// Factor that divides every dimension that the file declares as scalable (hidden size, vocabulary, ...). Every n-th
  /// of the scalable repeats (layers, experts) is kept. Cuts stay as they are. The result is a small version of the
  /// same plan, for trials. docs/layout-format.md has the exact rules. A dimension that does not divide evenly is
  /// Error{kUsage}.
  std::uint64_t scale_down = 1;
  /// Maximum number of shards, and of local tensors, that rules may make. Each takes about 250 bytes.
  std::size_t max_shards = std::size_t{1} << 22;
};

/// Reads a layout in the JSON form of docs/layout-format.md. `name` appears in error messages. Throws Error{kCorrupt}
/// that names the file and the place in it ("cuts[3].tensors") for anything that is not a valid layout, and
/// kUnsupported for another version of the format.
SPARSECAST_API Layout parse_layout_json(std::string_view json, const std::string& name,
                                        const LayoutFileOptions& options = {});
SPARSECAST_API Layout read_layout_file(FileSystem& fs, const std::string& path, const LayoutFileOptions& options = {});
/// Returns the explicit form, with every shard of every rank. parse_layout_json reads it back as an equal layout.
SPARSECAST_API std::string layout_to_json(const Layout& layout);

}  // namespace sparsecast
