#pragma once

// The forms in which `sparsecast log status` shows a log.

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

#include "tools/log/log_survey.hpp"

namespace sparsecast::tools {

/// For people: at a glance, a picture 64 columns wide. `unicode`: with block and line characters, else ASCII.
void print_status(const LogSurvey& survey, bool unicode, std::ostream& out);

/// For machines: docs/cli.md names the keys.
nlohmann::ordered_json status_json(const LogSurvey& survey);

/// One page with everything in it, no scripts; also well-formed XML.
std::string status_html(const LogSurvey& survey, const LayerHeat& heat);

/// The chart of the page: density, bytes, merged deltas and anchors, and layers, by version, in one frame.
std::string status_svg(const LogSurvey& survey, const LayerHeat& heat);

/// Versions in equal groups, a column each, when there are more of them than columns.
struct VersionColumns {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::uint64_t group = 1;  ///< Versions a column.

  VersionColumns(const LogSurvey& survey, std::uint64_t most);
  std::size_t size() const { return static_cast<std::size_t>((last - first) / group + 1); }
  std::size_t column_of(std::uint64_t version) const {
    return static_cast<std::size_t>((std::min(std::max(version, first), last) - first) / group);
  }
  /// "17" or "17 to 20"
  std::string name(std::size_t column) const;
  /// Of the versions of each column that have a delta: changed of all elements; negative where there is none.
  std::vector<double> densities(const LogSurvey& survey) const;
};

/// "unsigned", or who may sign.
std::string signers_in_words(const LogSurvey& survey);
/// "4 (3), 16 (1)": spans of the merged deltas, and how many there are of each.
std::string spans_in_words(const LogSurvey& survey);

}  // namespace sparsecast::tools
