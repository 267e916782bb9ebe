// SPDX-License-Identifier: Apache-2.0
#pragma once

// Several delta streams in one pass: a rank that sends or receives many routes detects, encodes, verifies and applies
// all of them at once, over one table that has the tensors of all streams one after another.

#include <cstddef>
#include <memory>
#include <vector>

#include "sparsecast/digest.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast {

/// The tables of delta streams, and the table that joins them. Immutable; copies share the tables.
class JoinedTables {
 public:
  /// Makes the tables of a single stream; the joined table is `table` itself.
  JoinedTables(std::shared_ptr<const TensorTable> table);  // NOLINT(google-explicit-constructor)
  /// Makes the tables of a single stream, without owning `table`, which must outlive this object and its copies.
  JoinedTables(const TensorTable& table);  // NOLINT(google-explicit-constructor)
  /// Joins the tables of several streams in this order. A name that an earlier stream already has is followed by "
  /// (stream 2)" in the joined table. Throws Error{kUsage} over the limits of TensorTable.
  explicit JoinedTables(std::vector<std::shared_ptr<const TensorTable>> tables);

  std::size_t streams() const noexcept { return tables_.size(); }
  const std::shared_ptr<const TensorTable>& table(std::size_t stream) const { return tables_[stream]; }
  /// Returns the joined table: the tensors of all streams, stream 0 first. Each element contributes to the state digest
  /// exactly what it does in the table of its stream.
  const TensorTable& all() const noexcept { return *all_; }
  const std::shared_ptr<const TensorTable>& shared() const noexcept { return all_; }
  /// Returns the index in all() of the first tensor of a stream; for `stream` == streams() the result is all().size().
  std::size_t first(std::size_t stream) const { return first_[stream]; }

  /// Returns one digest per stream: the sum of its tensors' digests. `of_tensors` is parallel to all().
  std::vector<StateDigest> sums(const std::vector<StateDigest>& of_tensors) const;

 private:
  std::vector<std::shared_ptr<const TensorTable>> tables_;
  std::shared_ptr<const TensorTable> all_;
  std::vector<std::size_t> first_;  ///< Index in all() of each stream's first tensor; the last entry is all().size().
};

}  // namespace sparsecast
