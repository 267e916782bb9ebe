// SPDX-License-Identifier: Apache-2.0
#pragma once

// Measures one version of a recorded run in sparsecast's frames and in the layouts of other systems: bytes, and
// processor times of one thread.

#include <string>
#include <vector>

#include "common/checkpoint_series.hpp"

namespace sparsecast::bench {

/// Figures of one layout. Times are processor milliseconds of one thread, one sample per repetition.
struct LayoutFigures {
  std::string name;
  std::uint64_t bytes = 0;        ///< Size of all files of the version.
  std::vector<double> encode_ms;  ///< Time from the two states in memory to files.
  /// Time from the files to the new state in memory, with every check that the layout allows. Empty for a layout
  /// without a reader here.
  std::vector<double> decode_ms;
};

/// Returns figures of the step `step` of the series, sparsecast's own first, each time measured `repeats` times. Files
/// go to `scratch`, best in memory. Throws Error{kDigestMismatch} when a layout does not lead to the new state.
std::vector<LayoutFigures> measure_layouts(FileSystem& fs, const std::string& series, std::size_t step, int repeats,
                                           const std::string& scratch);

}  // namespace sparsecast::bench
