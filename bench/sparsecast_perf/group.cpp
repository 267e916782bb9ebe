// SPDX-License-Identifier: Apache-2.0
#include "sparsecast_perf/group.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

namespace sparsecast::perf {

double Group::slowest(double seconds) {
  double worst = seconds;
  for (const std::uint64_t bits : all_gather(std::bit_cast<std::uint64_t>(seconds))) {
    worst = std::max(worst, std::bit_cast<double>(bits));
  }
  return worst;
}

std::uint64_t Group::largest(std::uint64_t value) {
  const std::vector<std::uint64_t> values = all_gather(value);
  return *std::max_element(values.begin(), values.end());
}

std::uint64_t Group::sum(std::uint64_t value) {
  const std::vector<std::uint64_t> values = all_gather(value);
  return std::accumulate(values.begin(), values.end(), std::uint64_t{0});
}

}  // namespace sparsecast::perf
