// SPDX-License-Identifier: Apache-2.0
#pragma once

// Short texts for many ranks and many tensors.

#include <cstdint>
#include <string>
#include <vector>

#include "sparsecast/tensor.hpp"

namespace sparsecast::tools {

/// Returns `ranks`, which ascend, as text: "0-15,32,40-60/4", where /4 means every fourth.
std::string rank_ranges(const std::vector<int>& ranks);
/// Returns what rank_ranges() returns; if that is longer than `most` characters, cut after whole runs and followed by
/// the number of ranks: "0-3,8-11,... (64)".
std::string short_rank_ranges(const std::vector<int>& ranks, std::size_t most);

struct TensorPattern {
  std::string pattern;
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
};

/// Says by a few patterns to which tensors some bytes belong. Numbers between dots become *. Patterns that share their
/// first four components or more are joined to one that ends in *; while there are more than four patterns, patterns
/// that share fewer components are joined, too.
class NamePatterns {
 public:
  explicit NamePatterns(const TensorTable& table);
  /// Returns the patterns of the tensors that have bytes, most bytes first. bytes[t] is the number of bytes of tensor
  /// t.
  std::vector<TensorPattern> of(const std::vector<std::uint64_t>& bytes) const;

 private:
  std::vector<std::vector<std::string>> patterns_;  ///< The components, between dots, of each pattern.
  std::vector<std::uint32_t> pattern_of_;           ///< Index in patterns_ of the pattern of each tensor.
};

/// Returns the patterns as one line of text: "a.*, b.weight".
std::string join_patterns(const std::vector<TensorPattern>& patterns);
/// Returns what join_patterns() returns; if that is longer than `most` bytes, cut after whole patterns (at least one)
/// and followed by the number of patterns left out: "a.*, +2".
std::string short_patterns(const std::vector<TensorPattern>& patterns, std::size_t most);

}  // namespace sparsecast::tools
