#include "bootstrap/parts.hpp"

#include <algorithm>

namespace sparsecast {

std::vector<int> ranks_of_part(const std::vector<PartChoice>& choices, int color) {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < choices.size(); ++r) {
    if (choices[r].color == color) ranks.push_back(static_cast<int>(r));
  }
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    return choices[static_cast<std::size_t>(a)].key < choices[static_cast<std::size_t>(b)].key;
  });
  return ranks;
}

}  // namespace sparsecast
