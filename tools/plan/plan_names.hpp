#pragma once

// Many ranks and many tensors in a few characters.

#include <cstdint>
#include <string>
#include <vector>

#include "sparsecast/tensor_table.hpp"

namespace sparsecast::tools {

/// "0-15,32,40-60/4": runs, and every fourth from 40 to 60. `ranks` ascend.
std::string rank_ranges(const std::vector<int>& ranks);
/// As rank_ranges, cut after whole runs when it is longer than `most` characters: "0-3,8-11,... (64)".
std::string short_rank_ranges(const std::vector<int>& ranks, std::size_t most);

struct NamePattern {
  std::string pattern;
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
};

/// Says in few patterns which tensors some bytes are of. Numbers between dots become *; patterns that share four
/// components or more become one, whose end is *, and so on with fewer while there are more than four.
class NamePatterns {
 public:
  explicit NamePatterns(const TensorTable& table);
  /// `bytes[t]` is how much there is of tensor t; tensors with none are left out. Most bytes first.
  std::vector<NamePattern> of(const std::vector<std::uint64_t>& bytes) const;

 private:
  std::vector<std::vector<std::string>> patterns_;  ///< Components.
  std::vector<std::uint32_t> pattern_of_;           ///< By tensor.
};

/// "a.*, b.weight"
std::string join_patterns(const std::vector<NamePattern>& patterns);
/// As join_patterns, cut after whole patterns, but one at least, when it is longer than `most` bytes: "a.*, +2".
std::string short_patterns(const std::vector<NamePattern>& patterns, std::size_t most);

}  // namespace sparsecast::tools
