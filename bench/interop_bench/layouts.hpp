#pragma once

// One version of a recorded run in our frames and in other systems' layouts: bytes, and processor times of one thread.

#include <string>
#include <vector>

#include "common/checkpoint_series.hpp"

namespace sparsecast::bench {

/// Figures of one layout. Times are processor milliseconds of one thread, one sample per repetition.
struct LayoutFigures {
  std::string name;
  std::uint64_t bytes = 0;        ///< All files of the version.
  std::vector<double> encode_ms;  ///< From the two states in memory to files.
  /// From the files to the new state in memory, with every check that the layout allows. Empty: there is no reader.
  std::vector<double> decode_ms;
};

/// Returns figures of the step `step` of the series, sparsecast's own first, each time measured `repeats` times. Files
/// go to `scratch`, best in memory. Throws Error{kDigestMismatch} when a layout does not lead to the new state.
std::vector<LayoutFigures> measure_layouts(FileSystem& fs, const std::string& series, std::size_t step, int repeats,
                                           const std::string& scratch);

}  // namespace sparsecast::bench
