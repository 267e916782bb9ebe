#pragma once

// One version of a recorded run in our frames and in other systems' layouts: bytes, and processor times of one thread.

#include <string>
#include <vector>

#include "common/checkpoint_series.hpp"

namespace sparsecast::bench {

struct LayoutFigures {
  std::string name;
  std::uint64_t bytes = 0;  ///< All files of the version.
  double encode_ms = 0;     ///< From the two states in memory to files.
  double decode_ms =
      0;  ///< From the files to the new state in memory, with every check that the layout allows. 0: none.
};

/// States before and after step `step` of the series; each time is the least of `repeats`. Files go to `scratch`, best
/// in memory. Throws Error{kDigestMismatch} when a layout does not lead to the new state.
std::vector<LayoutFigures> measure_layouts(FileSystem& fs, const std::string& series, std::size_t step, int repeats,
                                           const std::string& scratch);

}  // namespace sparsecast::bench
