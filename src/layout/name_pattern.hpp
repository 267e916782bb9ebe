// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sparsecast {

/// A name with variables in braces: "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight".
class NamePattern {
 public:
  /// Throws Error{kUsage} for a brace without its counterpart, or nothing between the two.
  explicit NamePattern(std::string_view text);

  bool uses(std::string_view variable) const;
  /// The name with one variable replaced; others stay as they are, in braces.
  std::string with(std::string_view variable, std::uint32_t value) const;
  /// Every variable once, in the order of the text.
  std::vector<std::string> variables() const;

 private:
  struct PatternPiece {
    std::string text;
    bool variable = false;
  };
  std::vector<PatternPiece> pieces_;
};

}  // namespace sparsecast
