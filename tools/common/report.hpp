// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sparsecast/digest.hpp"
#include "tools/common/cli.hpp"

namespace sparsecast::tools {

std::string human_count(std::uint64_t value);  ///< Returns a number with separators: "7,612,345".
/// Returns a number of bytes in words: "15.2 MB" (powers of 1000), "812 bytes".
std::string human_bytes(std::uint64_t bytes);
std::string human_percent(double share);    ///< Returns a share, 0 to 1, in percent: "1.139 %".
std::string human_seconds(double seconds);  ///< Returns a time in seconds: "1.25 s".
/// Returns numerator / denominator; 0 if the denominator is 0, so that JSON holds a number.
double ratio(double numerator, double denominator);

/// Named results, printed as aligned lines for people or as one JSON object for machines.
class Report {
 public:
  /// Adds a result. `label` and `text` are for people; an empty label leaves the line out.
  void add(const std::string& key, nlohmann::ordered_json value, const std::string& label, const std::string& text);
  void add(const std::string& key, std::uint64_t value, const std::string& label);
  void add(const std::string& key, const std::string& value, const std::string& label);
  void add(const std::string& key, const Hash128& value, const std::string& label);
  void print(Console& console, bool json) const;

 private:
  struct Line {
    std::string label;
    std::string text;
  };
  std::vector<Line> lines_;
  nlohmann::ordered_json object_ = nlohmann::ordered_json::object();
};

/// Prints rows of text under a heading, each column as wide as it needs. The first `left` columns, and the last if
/// `left_end`, are aligned left, all others right.
class Columns {
 public:
  explicit Columns(std::vector<std::string> heading, std::size_t left = 1, bool left_end = false)
      : left_(left), left_end_(left_end) {
    rows_.push_back(std::move(heading));
  }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void print(std::ostream& out) const;

 private:
  std::size_t left_;
  bool left_end_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace sparsecast::tools
