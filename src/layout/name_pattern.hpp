// SPDX-License-Identifier: Apache-2.0
#pragma once

// Name patterns with variables, and wildcards.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/utf8.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

/// A name with variables in braces, such as "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight".
class NamePattern {
 public:
  /// Parses `text`, a name with its variables in braces. Throws Error{kUsage} for an unbalanced brace or empty braces.
  explicit NamePattern(std::string_view text);

  /// Returns whether the name contains the variable `variable`.
  bool uses(std::string_view variable) const;
  /// Returns the name with `variable` replaced by `value`. All other variables stay in the name, in their braces.
  std::string with(std::string_view variable, std::uint32_t value) const;
  /// Returns each variable of the name once, in the order in which the variables first occur.
  std::vector<std::string> variables() const;

 private:
  struct PatternPiece {
    std::string text;
    bool variable = false;
  };
  std::vector<PatternPiece> pieces_;
};

inline NamePattern::NamePattern(std::string_view text) {
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

inline bool NamePattern::uses(std::string_view variable) const {
  return std::any_of(pieces_.begin(), pieces_.end(),
                     [&](const PatternPiece& piece) { return piece.variable && piece.text == variable; });
}

inline std::string NamePattern::with(std::string_view variable, std::uint32_t value) const {
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

inline std::vector<std::string> NamePattern::variables() const {
  std::vector<std::string> names;
  for (const PatternPiece& piece : pieces_) {
    if (piece.variable && std::find(names.begin(), names.end(), piece.text) == names.end()) names.push_back(piece.text);
  }
  return names;
}

/// Returns whether the whole `text` matches `pattern`, in which '*' stands for any number of any characters, and '?'
/// for any single character. Takes time of at most the product of the two lengths.
inline bool matches_wildcard(std::string_view pattern, std::string_view text) {
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;
  std::size_t resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace sparsecast
