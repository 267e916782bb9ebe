// SPDX-License-Identifier: Apache-2.0
#pragma once

// Output formats of `sparsecast log status`.

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

#include "tools/log/log_survey.hpp"

namespace sparsecast::tools {

/// Prints a summary with a picture 64 columns wide. With `unicode` it uses block and line characters, otherwise ASCII.
void print_status(const LogSurvey& survey, bool unicode, std::ostream& out);

/// Returns the JSON object whose keys docs/cli.md lists.
nlohmann::ordered_json status_json(const LogSurvey& survey);

/// Returns one self-contained page without scripts; also well-formed XML.
std::string status_html(const LogSurvey& survey, const LayerHeat& heat);

/// Returns the chart of the page as SVG: density, bytes, merged deltas, anchors, and layers, by version.
std::string status_svg(const LogSurvey& survey, const LayerHeat& heat);

/// Distributes versions over columns: equal numbers of versions in a column if there are more versions than columns.
struct VersionColumns {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::uint64_t group = 1;  ///< Number of versions in a column.

  VersionColumns(const LogSurvey& survey, std::uint64_t most);
  std::size_t size() const { return static_cast<std::size_t>((last - first) / group + 1); }
  std::size_t column_of(std::uint64_t version) const {
    return static_cast<std::size_t>((std::min(std::max(version, first), last) - first) / group);
  }
  /// Returns the versions of a column: "17" or "17 to 20".
  std::string name(std::size_t column) const;
  /// Returns, for each column, the changed share of all elements over its versions that have a delta; negative if none
  /// has.
  std::vector<double> densities(const LogSurvey& survey) const;
};

/// Returns "unsigned", or the keys that may sign.
std::string signers_in_words(const LogSurvey& survey);
/// Returns the spans of the merged deltas with their numbers: "4 (3), 16 (1)".
std::string spans_in_words(const LogSurvey& survey);

}  // namespace sparsecast::tools
