// SPDX-License-Identifier: Apache-2.0
#pragma once

// A layout describes how one side of a stream, a trainer or an engine, holds canonical tensors: boxes of them, in the
// local tensors of its ranks. docs/fanout.md explains the algebra.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sparsecast/delta.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/hash.hpp"
#include "sparsecast/tensor_ref.hpp"
#include "sparsecast/tensor_table.hpp"

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

}  // namespace sparsecast
