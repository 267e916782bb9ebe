// SPDX-License-Identifier: Apache-2.0
#include "layout/name_pattern.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/utf8.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

NamePattern::NamePattern(std::string_view text) {
  const std::string_view whole = text;
  while (!text.empty()) {
    const std::size_t brace = std::min(text.find_first_of("{}"), text.size());
    if (brace > 0) pieces_.push_back({std::string(text.substr(0, brace)), false});
    text.remove_prefix(brace);
    if (text.empty()) break;
    const std::size_t end = text.find('}');
    if (text[0] == '}' || end == std::string_view::npos || end == 1 || text.find('{', 1) < end) {
      throw Error(ErrorCode::kUsage, fmt::format("braces that do not enclose a variable in '{}'", excerpt(whole)));
    }
    pieces_.push_back({std::string(text.substr(1, end - 1)), true});
    text.remove_prefix(end + 1);
  }
}

bool NamePattern::uses(std::string_view variable) const {
  return std::any_of(pieces_.begin(), pieces_.end(),
                     [&](const PatternPiece& piece) { return piece.variable && piece.text == variable; });
}

std::string NamePattern::with(std::string_view variable, std::uint32_t value) const {
  std::string name;
  for (const PatternPiece& piece : pieces_) {
    if (!piece.variable) {
      name += piece.text;
    } else if (piece.text == variable) {
      name += std::to_string(value);
    } else {
      name += '{' + piece.text + '}';
    }
  }
  return name;
}

std::vector<std::string> NamePattern::variables() const {
  std::vector<std::string> names;
  for (const PatternPiece& piece : pieces_) {
    if (piece.variable && std::find(names.begin(), names.end(), piece.text) == names.end()) names.push_back(piece.text);
  }
  return names;
}

}  // namespace sparsecast
