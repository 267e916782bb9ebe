#pragma once

// Which ranks of a group make a part of it, for ControlChannel::split.

#include <cstdint>
#include <vector>

namespace sparsecast {

struct PartChoice {
  std::int32_t color = 0;
  std::int32_t key = 0;
};

/// The ranks of `color`, by key, then rank.
std::vector<int> ranks_of_part(const std::vector<PartChoice>& choices, int color);

}  // namespace sparsecast
