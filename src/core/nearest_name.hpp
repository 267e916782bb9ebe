// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "sparsecast/tensor.hpp"

namespace sparsecast {

/// Maximum number of bytes of a name that nearest_name() compares. The time for an edit distance is the product of the
/// lengths, and names may come from a hostile file.
inline constexpr std::size_t kNameCut = 200;
/// Maximum number of names that nearest_name() compares, because a table may come from a hostile file.
inline constexpr std::size_t kNameCandidates = 2000;

inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

/// Returns the name in `table` that is most similar to `name`, by edit distance; empty when no name is similar.
/// Compares only kNameCandidates names and kNameCut bytes of each.
inline std::string nearest_name(const TensorTable& table, const std::string& name) {
  const std::string_view wanted = std::string_view(name).substr(0, kNameCut);
  std::size_t best = wanted.size() / 2 + 1;
  std::string nearest;
  for (std::size_t i = 0; i < std::min(table.size(), kNameCandidates); ++i) {
    const std::size_t distance = edit_distance(wanted, std::string_view(table[i].name).substr(0, kNameCut));
    if (distance < best) {
      best = distance;
      nearest = table[i].name;
    }
  }
  return nearest;
}

}  // namespace sparsecast
