#pragma once

// How one side of a stream, a trainer or an engine, holds canonical tensors: boxes of them, in the local tensors of its
// ranks. docs/fanout.md has the algebra on one page.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sparsecast/delta.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/hash.hpp"
#include "sparsecast/tensor_table.hpp"

namespace sparsecast {

/// A tensor in a layout has at most this many dimensions.
inline constexpr std::size_t kMaxLayoutDims = 8;

/// A rectangular part of a canonical tensor: elements [offset, offset + extent) in each dimension. A scalar's box has
/// no dimensions and one element. Ends of boxes are below 2^64.
struct SPARSECAST_API Box {
  std::vector<std::uint64_t> offset;
  std::vector<std::uint64_t> extent;

  /// Product of the extents; 0 when one of them is, 2^64 - 1 when it is larger.
  std::uint64_t elements() const noexcept;
  bool contains(const Box& other) const noexcept;  ///< False for a box of another number of dimensions.
  friend bool operator==(const Box&, const Box&) = default;
  friend auto operator<=>(const Box&, const Box&) = default;
};

/// The whole of a tensor of this shape.
SPARSECAST_API Box whole_box(const std::vector<std::uint64_t>& shape);
/// What two boxes of one tensor share; none when that is empty, or when they have other numbers of dimensions.
SPARSECAST_API std::optional<Box> intersect(const Box& a, const Box& b);
/// "[0:128,64:128]"; "[]" for a scalar.
SPARSECAST_API std::string to_string(const Box& box);

/// A tensor in the memory of a rank: contiguous, `elements` of them, aligned to an element.
struct LocalTensor {
  std::string name;  ///< As the framework names it; for errors and tables.
  DType dtype = DType::kBF16;
  std::uint64_t elements = 0;  ///< With padding that no shard covers.
  friend bool operator==(const LocalTensor&, const LocalTensor&) = default;
};

/// A box of a canonical tensor where it lies in a local tensor: its element (i, j, ...), counted from the box's first,
/// is element first + i * strides[0] + j * strides[1] + ... of the local tensor.
struct Shard {
  std::uint32_t tensor = 0;  ///< Index into the layout's table.
  Box box;
  std::uint32_t local = 0;  ///< Index into the rank's tensors.
  std::uint64_t first = 0;  ///< Element of the local tensor.
  /// In elements, one a dimension, none negative. Those of dimensions with more than one element nest, in any order:
  /// each is over the reach of all smaller ones, as in a slice of a tensor, transposed or not.
  std::vector<std::int64_t> strides;
  /// Trainer only: this rank knows the bytes that receivers hold, so it can send the shard. False where another rank
  /// has been sending it for some time (mark_bases).
  bool has_base = true;
  friend bool operator==(const Shard&, const Shard&) = default;
};

struct RankLayout {
  std::string node;  ///< Names the machine, to prefer ways that stay inside it; may be empty: unknown.
  std::vector<LocalTensor> tensors;
  std::vector<Shard> shards;
  friend bool operator==(const RankLayout&, const RankLayout&) = default;
};

/// Two names of one tensor: what is sent for `original` is what `alias` holds (tied embeddings, shared draft heads).
struct TiedTensor {
  std::string alias;
  std::string original;
  friend bool operator==(const TiedTensor&, const TiedTensor&) = default;
};

/// The canonical tensors of one side, and where its ranks hold them. Immutable.
class SPARSECAST_API Layout {
 public:
  static constexpr std::size_t kMaxRanks = std::size_t{1} << 16;
  static constexpr std::size_t kMaxShards = std::size_t{1} << 24;  ///< Of all ranks; of local tensors as many.

  /// `table` names every tensor that a shard or a tie refers to. Shards whose local memory overlaps without being the
  /// very same elements are refused; where two names have the very same memory, they must be tied. Several shards may
  /// hold the same canonical elements in memory of their own (copies). Throws Error{kUsage} that names rank and tensor
  /// for that and for anything that does not fit: empty boxes and boxes outside the tensor, addresses outside the local
  /// tensor, strides that do not nest, the same shard twice, dtypes that differ, ties of different shapes or in a
  /// circle, over kMaxLayoutDims dimensions, names that are not UTF-8 of at most 65535 bytes.
  Layout(TensorTable table, std::vector<RankLayout> ranks, std::vector<TiedTensor> ties = {});

  const TensorTable& table() const noexcept { return table_; }
  const std::vector<RankLayout>& ranks() const noexcept { return ranks_; }
  const std::vector<TiedTensor>& ties() const noexcept { return ties_; }
  /// Index of the tensor that is sent for tensor i: the end of its ties, or itself.
  std::size_t original_of(std::size_t tensor) const { return originals_[tensor]; }
  /// XXH3-128 of what serialize() compresses: equal for equal layouts, whatever version of zstd a rank has.
  const Hash128& hash() const noexcept { return hash_; }

  /// For ranks to exchange: compressed with zstd.
  Bytes serialize() const;
  /// Inverse of serialize. Throws Error{kCorrupt} for anything else (kUnsupported for another version of the format),
  /// before it allocates more than such bytes can need.
  static Layout parse(ConstBytes bytes);

 private:
  TensorTable table_;
  std::vector<RankLayout> ranks_;
  std::vector<TiedTensor> ties_;
  std::vector<std::uint32_t> originals_;
  Hash128 hash_;
};

}  // namespace sparsecast
