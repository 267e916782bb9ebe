// SPDX-License-Identifier: Apache-2.0
#pragma once

// Cuts a delta of whole tensors into deltas of regions of these tensors, for readers that hold only parts of the
// tensors.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "sparsecast/delta.hpp"
#include "sparsecast/fanout_plan.hpp"

namespace sparsecast {

/// The elements of a box of a tensor as runs: sequences of elements that follow one another both in the box and in the
/// tensor (row-major order). All runs have the same length.
class BoxRuns {
 public:
  /// Makes the runs of `box`, which must lie inside a tensor of this shape and must not be empty.
  BoxRuns(const std::vector<std::uint64_t>& shape, const Box& box);

  /// Returns the number of elements in a run.
  std::uint64_t length() const noexcept { return length_; }
  /// Returns the index, in the tensor, of the first element of run number `run`.
  std::uint64_t first(std::uint64_t run) const;
  /// Returns the index in the box of element number `element` of the tensor; nullopt when this element is not in the
  /// box. Fast for elements in ascending order, because the row of the last call is kept.
  std::optional<std::uint64_t> find(std::uint64_t element);

 private:
  struct Dimension {
    std::uint64_t size = 1;  ///< Size of the tensor in this dimension.
    std::uint64_t offset = 0;
    std::uint64_t extent = 1;
  };
  void find_row(std::uint64_t element);

  /// The dimensions before the last dimension in which the box is smaller than the tensor.
  std::vector<Dimension> outer_;
  /// Number of elements in a row of the tensor. A row spans the last dimension in which the box is smaller than the
  /// tensor, and all dimensions after it; it has at most one run.
  std::uint64_t row_ = 1;
  std::uint64_t skipped_ = 0;  ///< Number of elements of a row before its run.
  std::uint64_t length_ = 1;
  std::uint64_t row_begin_ = 0;  ///< Index, in the tensor, of the first element of the row that find() used last.
  /// Index, in the box, of the first element of the run in the row at row_begin_; nullopt when this row has no run.
  std::optional<std::uint64_t> row_in_box_;
};

/// Description of a delta that is to be cut out of a delta of whole tensors.
struct CutStream {
  std::shared_ptr<const TensorTable> table;  ///< Table of the stream's deltas (FanoutPlan::route_table).
  /// The boxes of whole tensors that the tensors of `table` stand for, parallel to `table`. Region::tensor is an index
  /// into the table of the delta that is cut. Regions ascend by tensor, and their elements are in row-major order.
  std::vector<Region> regions;
  StateDigest base_digest;  ///< Digest of the regions before the delta.
};

/// Cuts `delta` into one delta for each of `streams`. Passes each record to `sink` with the index of its stream: first
/// the headers of all streams, then frames of all streams; the commit record is the last record of each stream. A
/// stream without changes gets no frame. The versions and the value codec are those of `delta`, the stream identifiers
/// are derived from the tables, and the positions are `packed`, bitmaps or dense. The result digest in each commit
/// record is zero, because the digests of the parts cannot be derived from the delta of the whole tensors.
///
/// Keeps only the encoded changes of one tensor in memory. Throws Error{kUnsupported} for a delta with `context`
/// positions, which can be decoded only with the elements around them; Error{kCorrupt} for a block that is not valid;
/// Error{kIo}.
void cut(const DeltaFile& delta, const std::vector<CutStream>& streams,
         const std::function<void(std::size_t stream, Bytes&& record)>& sink);

}  // namespace sparsecast
