// SPDX-License-Identifier: Apache-2.0
#include "tools/common/report.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace sparsecast::tools {

std::string human_count(std::uint64_t value) {
  std::string digits = std::to_string(value);
  for (std::size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

std::string human_bytes(std::uint64_t bytes) {
  if (bytes < 1000) return fmt::format("{} bytes", bytes);
  constexpr const char* kUnits[] = {"kB", "MB", "GB", "TB", "PB", "EB"};
  double value = static_cast<double>(bytes) / 1000;
  std::size_t unit = 0;
  for (; value >= 1000 && unit + 1 < std::size(kUnits); ++unit) value /= 1000;
  return fmt::format("{:.3g} {}", value, kUnits[unit]);
}

std::string human_percent(double share) { return fmt::format("{:.4g} %", share * 100); }

std::string human_seconds(double seconds) { return fmt::format("{:.3g} s", seconds); }

double ratio(double numerator, double denominator) { return denominator == 0 ? 0 : numerator / denominator; }

void Report::add(const std::string& key, nlohmann::ordered_json value, const std::string& label,
                 const std::string& text) {
  object_[key] = std::move(value);
  if (!label.empty()) lines_.push_back({label, text});
}

void Report::add(const std::string& key, std::uint64_t value, const std::string& label) {
  add(key, value, label, human_count(value));
}

void Report::add(const std::string& key, const std::string& value, const std::string& label) {
  add(key, value, label, value);
}

void Report::add(const std::string& key, const Hash128& value, const std::string& label) {
  add(key, to_hex(value), label, to_hex(value));
}

void Report::print(Console& console, bool json) const {
  if (json) {
    // Names of tensors and files may contain any bytes.
    console.out << object_.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
    return;
  }
  std::size_t width = 0;
  for (const Line& line : lines_) width = std::max(width, line.label.size());
  for (const Line& line : lines_) console.out << fmt::format("{:<{}}  {}\n", line.label, width, line.text);
}

void Columns::print(std::ostream& out) const {
  std::vector<std::size_t> widths(rows_.front().size(), 0);
  for (const auto& row : rows_) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const bool left = c < left_ || (left_end_ && c + 1 == row.size());
      if (c > 0) line += "  ";
      line += left ? fmt::format("{:<{}}", row[c], widths[c]) : fmt::format("{:>{}}", row[c], widths[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  }
}

}  // namespace sparsecast::tools
