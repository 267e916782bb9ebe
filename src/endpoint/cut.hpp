// SPDX-License-Identifier: Apache-2.0
#pragma once

// Cuts a delta of whole tensors into deltas of regions of them, for readers that hold parts of the tensors.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "sparsecast/delta.hpp"
#include "sparsecast/fanout_plan.hpp"

namespace sparsecast {

/// The elements of a box of a tensor, in row-major order, as runs of elements that follow one another in the tensor,
/// too. All runs have the same length.
class BoxRuns {
 public:
  /// Makes the runs of `box`, which lies inside of a tensor of this shape and is not empty.
  BoxRuns(const std::vector<std::uint64_t>& shape, const Box& box);

  /// Returns the number of elements in a run.
  std::uint64_t length() const noexcept { return length_; }
  /// Returns the index, in the tensor, of the first element of run number `run`.
  std::uint64_t first(std::uint64_t run) const;
  /// Returns the index, in the box, of element number `element` of the tensor; nullopt when the box does not have it.
  /// Fast for elements in ascending order, because the row of the last call is kept.
  std::optional<std::uint64_t> find(std::uint64_t element);

 private:
  struct Dimension {
    std::uint64_t size = 1;  ///< Of the tensor.
    std::uint64_t offset = 0;
    std::uint64_t extent = 1;
  };
  void find_row(std::uint64_t element);

  std::vector<Dimension> outer_;  ///< The dimensions before the last one that the box cuts.
  std::uint64_t row_ = 1;         ///< Elements of the tensor from one run to the next: that dimension and all after it.
  std::uint64_t skipped_ = 0;     ///< Elements of a row before its run.
  std::uint64_t length_ = 1;
  std::uint64_t row_begin_ = 0;              ///< First element of the row that find() looked at last.
  std::optional<std::uint64_t> row_in_box_;  ///< Index, in the box, of that row's run; nullopt when it has none.
};

/// A delta that is cut out of another one.
struct CutStream {
  std::shared_ptr<const TensorTable> table;  ///< FanoutPlan::route_table.
  /// The boxes that the table's tensors are, parallel to it. Region::tensor is an index into the table of the delta
  /// that is cut. Regions ascend by tensor, and their elements are in row-major order.
  std::vector<Region> regions;
  StateDigest base_digest;  ///< Digest of the regions before the delta.
};

/// Cuts `delta`. Passes each record to `sink` with the number of its stream: for each stream a header, then the frames
/// of all streams, then a commit record for each. A stream without changes gets no frame. Versions and values are those
/// of `delta`, stream identifiers are derived from the tables, positions are `packed`, bitmaps or dense. The digest in
/// a commit record is zero: what a part has to come to is not known from the whole delta.
///
/// Only one tensor's changes are in memory, encoded. Throws Error{kUnsupported} for a delta with `context` positions,
/// which can be decoded only with the elements around them; Error{kCorrupt} for a block that is not valid; Error{kIo}.
void cut(const DeltaFile& delta, const std::vector<CutStream>& streams,
         const std::function<void(std::size_t stream, Bytes&& record)>& sink);

}  // namespace sparsecast
