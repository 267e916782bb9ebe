// SPDX-License-Identifier: Apache-2.0
#pragma once

// Short texts for many ranks and many tensors.

#include <cstdint>
#include <string>
#include <vector>

#include "sparsecast/tensor.hpp"

namespace sparsecast::tools {

/// Returns ascending ranks as runs: "0-15,32,40-60/4", where /4 means every fourth.
std::string rank_ranges(const std::vector<int>& ranks);
/// Returns rank_ranges, cut after whole runs if it is longer than `most` characters: "0-3,8-11,... (64)".
std::string short_rank_ranges(const std::vector<int>& ranks, std::size_t most);

struct TensorPattern {
  std::string pattern;
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
};

/// Summarises by a few patterns to which tensors some bytes belong. Numbers between dots become *; patterns that share
/// four components or more are joined to one that ends in *, and with fewer shared components while there are more than
/// four patterns.
class NamePatterns {
 public:
  explicit NamePatterns(const TensorTable& table);
  /// Returns the patterns, most bytes first. `bytes[t]` is the number of bytes of tensor t; tensors with none are left
  /// out.
  std::vector<TensorPattern> of(const std::vector<std::uint64_t>& bytes) const;

 private:
  std::vector<std::vector<std::string>> patterns_;  ///< Components of each pattern.
  std::vector<std::uint32_t> pattern_of_;           ///< Pattern of each tensor.
};

/// Returns the patterns in one line: "a.*, b.weight".
std::string join_patterns(const std::vector<TensorPattern>& patterns);
/// Returns join_patterns, cut after whole patterns (at least one) if it is longer than `most` bytes: "a.*, +2".
std::string short_patterns(const std::vector<TensorPattern>& patterns, std::size_t most);

}  // namespace sparsecast::tools
