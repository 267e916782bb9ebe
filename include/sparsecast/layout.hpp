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

/// Maximum number of dimensions of a tensor in a layout.
inline constexpr std::size_t kMaxLayoutDims = 8;

/// A rectangular part of a canonical tensor: elements [offset, offset + extent) in each dimension. A scalar's box has
/// no dimensions and one element. Ends of boxes are below 2^64.
struct SPARSECAST_API Box {
  std::vector<std::uint64_t> offset;
  std::vector<std::uint64_t> extent;

  /// Returns the product of the extents; 0 when an extent is 0, and 2^64 - 1 when the product is larger.
  std::uint64_t elements() const noexcept;
  /// Returns true when `other` lies within this box; false for a box of another number of dimensions.
  bool contains(const Box& other) const noexcept;
  friend bool operator==(const Box&, const Box&) = default;
  friend auto operator<=>(const Box&, const Box&) = default;
};

/// Returns the box that covers a whole tensor of this shape.
SPARSECAST_API Box whole_box(const std::vector<std::uint64_t>& shape);
/// Returns the intersection of two boxes of one tensor; nullopt when it is empty, or when their numbers of dimensions
/// differ.
SPARSECAST_API std::optional<Box> intersect(const Box& a, const Box& b);
/// Returns the box as text, "[begin:end]" for each dimension: "[0:128,64:128]"; "[]" for a scalar.
SPARSECAST_API std::string to_string(const Box& box);

/// A tensor in the memory of a rank: `elements` contiguous elements, aligned to the size of an element.
struct LocalTensor {
  std::string name;  ///< Name of the tensor in the framework, used in errors and tables.
  DType dtype = DType::kBF16;
  std::uint64_t elements = 0;  ///< Number of elements, including padding that no shard covers.
  friend bool operator==(const LocalTensor&, const LocalTensor&) = default;
};

/// A box of a canonical tensor and its location in a local tensor. Element (i, j, ...) of the box, counted from the
/// box's first element, is element first + i * strides[0] + j * strides[1] + ... of the local tensor.
struct Shard {
  std::uint32_t tensor = 0;  ///< Index, into the layout's table, of the canonical tensor.
  Box box;
  std::uint32_t local = 0;  ///< Index, into RankLayout::tensors, of the local tensor.
  std::uint64_t first = 0;  ///< Index of the box's first element in the local tensor.
  /// Strides in elements of the local tensor, one per dimension of the box, none negative. The strides of dimensions
  /// with more than one element must nest, in any order: each exceeds the largest offset that all smaller ones reach
  /// together, as in a slice of a tensor, transposed or not.
  std::vector<std::int64_t> strides;
  /// Whether this rank knows the bytes that receivers hold for this shard, so that it can send it; for trainers only.
  /// False where another rank has been sending the elements (mark_bases).
  bool has_base = true;
  friend bool operator==(const Shard&, const Shard&) = default;
};

struct RankLayout {
  std::string node;  ///< Name of the machine, by which the plan prefers routes within a machine; empty: unknown.
  std::vector<LocalTensor> tensors;
  std::vector<Shard> shards;
  friend bool operator==(const RankLayout&, const RankLayout&) = default;
};

/// Two names of one tensor (tied embeddings, shared draft heads). `alias` holds the same elements as `original`, and
/// only the elements of `original` are sent.
struct TiedTensor {
  std::string alias;
  std::string original;
  friend bool operator==(const TiedTensor&, const TiedTensor&) = default;
};

/// The canonical tensors of a trainer or an engine, and the locations of their elements in the memory of its ranks.
/// Immutable.
class SPARSECAST_API Layout {
 public:
  static constexpr std::size_t kMaxRanks = std::size_t{1} << 16;
  /// Maximum number of shards over all ranks, and of local tensors over all ranks.
  static constexpr std::size_t kMaxShards = std::size_t{1} << 24;

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
  /// Returns the index of the tensor that is sent in place of `tensor`: the last original in its chain of ties, or
  /// `tensor` itself when it is not tied.
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

/// Returns references to the local tensors of a rank in host memory, with the dtypes of the layout. Throws
/// Error{kUsage} that names rank and tensor unless `tensors` has the bytes of each local tensor, in order.
SPARSECAST_API std::vector<TensorRef> refs_to(const Layout& layout, std::size_t rank,
                                              const std::vector<MutableBytes>& tensors);
/// Returns references to the local tensors of a rank at the addresses `d_tensors` in the memory of `device`, with the
/// dtypes of the layout. Throws Error{kUsage} that names rank and tensor unless there is one address for each local
/// tensor.
SPARSECAST_API std::vector<TensorRef> refs_to(const Layout& layout, std::size_t rank,
                                              const std::vector<void*>& d_tensors, int device);

// Makes the layout of all ranks of a trainer or an engine from the rules by which frameworks cut tensors: FSDP2 and
// DTensor, Megatron-core, SGLang and vLLM. Layout files (docs/layout-format.md) express the same rules in JSON.

struct MeshAxis {
  std::string name;  ///< Name of the axis, such as "pp", "dp", "tp" or "ep".
  std::uint32_t size = 1;
};

/// Axes of a mesh of ranks, the slowest first. On axes {pp, dp, tp} of sizes PP, DP and TP, the rank at coordinates
/// (pp, dp, tp) is (pp * DP + dp) * TP + tp.
using Mesh = std::vector<MeshAxis>;

/// Names of the axes that together cut a tensor, the slowest first. On axes {dp, tp} of sizes DP and TP, the rank at
/// coordinates (dp, tp) holds part dp * TP + tp of DP * TP parts. Empty: the tensor is not cut.
using Axes = std::vector<std::string>;

/// Condition on a rank: its coordinate on `axis` is one of `coordinates`.
struct AxisCondition {
  std::string axis;
  std::vector<std::uint32_t> coordinates;
};
/// Conditions that select ranks. A rank is selected when it meets all conditions. Empty: all ranks.
using Where = std::vector<AxisCondition>;

/// DTensor's Shard(dim): cuts dimension `dim`, of size n, into chunks of size ceil(n / parts), one for each of the
/// parts that `axes` give. Later chunks may be smaller or empty, as torch.chunk makes them.
struct Placement {
  std::size_t dim = 0;
  Axes axes;
};

/// Rule by which a local tensor is made of canonical tensors. "Rows" are dimension 0, and "parts" are those of `axes`.
/// A local tensor of several canonical tensors holds their parts one after another along the rows; all other dimensions
/// must agree.
struct SPARSECAST_API Cut {
  enum class Rule {
    kReplicate,  ///< Each rank holds the whole tensors.
    kShard,      ///< Each rank holds the chunk that `placements` gives it.
    /// Each rank holds an equal part of the rows of each tensor; its parts of several tensors follow one another.
    kColumnParallel,
    kRowParallel,    ///< Each rank holds an equal part of dimension 1 (the columns).
    kVocabParallel,  ///< The rows are padded to a multiple of `multiple`; each rank holds an equal part of them.
    /// Tensors q, k, v: the rows are ordered by KV group, and in a group its query heads come first, then k and v. Each
    /// rank holds an equal part of these rows.
    kLinearQkv,
    /// Tensors q, k, v: each rank holds its query heads, then its heads of k, then of v. When there are fewer KV heads
    /// than ranks, several ranks hold the same KV head.
    kQkvProj,
  };

  Rule rule = Rule::kReplicate;
  Axes axes;
  std::vector<Placement> placements;
  std::uint64_t multiple = 1;
  std::uint64_t query_heads = 0;
  std::uint64_t kv_heads = 0;  ///< Number of KV heads; for kLinearQkv the number of KV groups.

  /// Returns the cut by which each rank holds whole tensors; with several tensors this is SGLang's
  /// fused_qkv_a_proj_with_mqa.
  static Cut replicate() { return {}; }
  /// Returns the cut of FSDP2: Shard(0) over these axes. HSDP names only the axes that shard.
  static Cut fsdp2(Axes axes) { return dtensor({{0, std::move(axes)}}); }
  /// Returns the cut by these placements. They are applied in order, each to the part that the previous placement gave
  /// to the rank. FSDP2 over TP cuts TP's parts (_StridedShard), so TP comes first. The tensor is replicated over axes
  /// without a placement.
  static Cut dtensor(std::vector<Placement> placements);
  /// Returns the cut of ColumnParallelLinear: each rank holds an equal part of the rows. With several tensors it is the
  /// cut of MergedColumnParallelLinear (gate_up_proj) and of Megatron's linear_fc1.
  static Cut column_parallel(Axes axes);
  /// Returns the cut of RowParallelLinear: each rank holds an equal part of dimension 1.
  static Cut row_parallel(Axes axes);
  /// Returns the cut of VocabParallelEmbedding. Rows are padded to a multiple of `multiple`: 64 in SGLang and vLLM,
  /// make_vocab_size_divisible_by * TP in Megatron.
  static Cut vocab_parallel(Axes axes, std::uint64_t multiple);
  static Cut gate_up(Axes axes) { return column_parallel(std::move(axes)); }
  /// Returns the cut of Megatron's linear_qkv. With more parts than KV groups, each part holds a piece of a group and
  /// nothing is replicated, as in Megatron-core, which then gathers activations.
  static Cut linear_qkv(Axes axes, std::uint64_t query_heads, std::uint64_t kv_groups);
  /// Returns the cut of QKVParallelLinear of SGLang and vLLM (Rule::kQkvProj).
  static Cut qkv_proj(Axes axes, std::uint64_t query_heads, std::uint64_t kv_heads);
};

/// Distribution of a layer's experts over ranks.
struct Experts {
  Axes axes;  ///< Axes that divide the experts, in order, into equal parts.
  /// Number of the logical expert in each physical place. The places of all parts follow one another. Redundant experts
  /// occur several times (EPLB's map).
  std::vector<std::uint32_t> physical_to_logical;
  /// When true, a rank's experts are one local tensor [experts, rows, columns]. When false, the rank has one local
  /// tensor per place.
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
  /// Takes one or more meshes over the same ranks (Megatron has one for attention and one for experts). All meshes must
  /// have the same number of ranks, and an axis that occurs in several meshes must give each rank the same coordinate
  /// in all of them. At most `max_shards` shards and as many local tensors are made.
  explicit LayoutBuilder(const std::vector<Mesh>& meshes, std::size_t max_shards = Layout::kMaxShards);
  ~LayoutBuilder();
  LayoutBuilder(LayoutBuilder&&) noexcept;
  LayoutBuilder& operator=(LayoutBuilder&&) noexcept;

  std::size_t ranks() const noexcept;

  /// Names the machines: rank r is on "PREFIXn" with n = r / ranks_per_node.
  LayoutBuilder& nodes(const std::string& prefix, std::size_t ranks_per_node);
  /// Adds a canonical tensor, to which names in tie(), add() and add_experts() refer.
  LayoutBuilder& tensor(TensorSpec spec);
  /// Declares that the tensors `alias` and `original` hold the same elements, as in TiedTensor.
  LayoutBuilder& tie(const std::string& alias, const std::string& original);

  /// Adds a local tensor named `local`, made of the canonical `tensors` by the rule `cut`, to every rank of `where`. A
  /// rank that gets no elements, because of an uneven cut, has an empty local tensor.
  LayoutBuilder& add(const std::string& local, const std::vector<std::string>& tensors, const Cut& cut,
                     const Where& where = {});
  /// Adds the local tensors of a layer's experts to every rank of `where`; `experts` says which rank holds which
  /// experts. In each name in `tensors`, "{expert}" is replaced by the expert's number; a canonical tensor without it
  /// is stacked: its dimension 0 counts the experts. When the experts are not stacked locally, `local` has "{expert}"
  /// as well, which is replaced by the number of the expert's place, counted over all parts. `cut` cuts each expert's
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
  /// Factor by which every dimension is divided that the file declares as scalable (hidden size, vocabulary, ...). Of
  /// things that the file declares as scalable and repeated (layers, experts), only every n-th is kept, where n is this
  /// factor. Cuts stay as they are. The result is a small version of the same layout, for trials. docs/layout-format.md
  /// has the exact rules. A dimension that does not divide evenly is Error{kUsage}.
  std::uint64_t scale_down = 1;
  /// Maximum number of shards, and of local tensors, that rules may make. Each takes about 250 bytes.
  std::size_t max_shards = std::size_t{1} << 22;
};

/// Reads a layout in the JSON form of docs/layout-format.md. `name` appears in error messages. Throws Error{kCorrupt}
/// that names the file and the place in it ("cuts[3].tensors") for anything that is not a valid layout, and
/// kUnsupported for another version of the format.
SPARSECAST_API Layout parse_layout_json(std::string_view json, const std::string& name,
                                        const LayoutFileOptions& options = {});
/// Reads the layout file at `path`. Throws Error{kCorrupt | kUnsupported} for content that parse_layout_json rejects,
/// and kIo.
SPARSECAST_API Layout read_layout_file(FileSystem& fs, const std::string& path, const LayoutFileOptions& options = {});
/// Returns the layout as JSON in its explicit form, which lists every shard of every rank. parse_layout_json reads it
/// back as an equal layout.
SPARSECAST_API std::string layout_to_json(const Layout& layout);

}  // namespace sparsecast
