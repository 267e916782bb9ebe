// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "layout/json_place.hpp"
#include "sparsecast/layout.hpp"

namespace sparsecast {

/// Values of the variables of a name.
using Assignment = std::vector<std::pair<std::string, std::uint32_t>>;
/// The values that each variable takes, ascending.
using Values = std::map<std::string, std::vector<std::uint32_t>>;

/// Calls `call` for every assignment of these variables; the last variable changes fastest.
void for_each_assignment(const std::vector<std::string>& variables, const Values& values,
                         const std::function<void(const Assignment&)>& call);
/// Returns the name with these variables replaced.
std::string assigned(const std::string& pattern, const Assignment& assignment);

/// Reads "0-3,7" or an array of numbers. Each must be below `limit`, and there may be at most `limit`.
std::vector<std::uint32_t> read_indices(const JsonPlace& place, std::uint64_t limit);

/// The declarations of the model in a rule-based layout file (docs/layout-format.md): named sizes, named repeats, and
/// the tensors made of them. Of the sizes and repeats that the file marks as scalable, a size is divided by the
/// constructor's `scale_down`, and of the values of a repeat only every scale_down-th is kept, or by a smaller factor
/// where the file limits it.
class LayoutModel {
 public:
  struct ModelTensor {
    std::string name;  ///< Name pattern with its variables.
    std::vector<std::string> variables;
    Values values;
    DType dtype = DType::kBF16;
    std::vector<std::uint64_t> shape;
  };
  struct Repeat {
    std::uint32_t declared = 0;
    std::vector<std::uint32_t> kept;  ///< Values that are kept: all, unless the repeat is scaled down.
  };

  LayoutModel(const JsonPlace& root, std::uint64_t scale_down);

  const std::vector<ModelTensor>& tensors() const noexcept { return tensors_; }
  /// Returns the index of the tensor declared with this name. Throws with `place` if there is none.
  std::size_t find(const std::string& name, const JsonPlace& place) const;
  /// Returns the repeat with this name. Throws with `place` if there is none.
  const Repeat& repeat(const std::string& name, const JsonPlace& place) const;
  /// Evaluates a number, or a sum of products of numbers and names of sizes and repeats, such as
  /// "heads*nope+heads*rope".
  std::uint64_t evaluate(const JsonPlace& place) const;
  /// Adds every tensor to the builder.
  void declare(LayoutBuilder& builder) const;

 private:
  void read_sizes(const JsonPlace& place, std::uint64_t scale_down);
  void read_repeats(const JsonPlace& place, std::uint64_t scale_down);
  void read_tensor(const JsonPlace& place, DType dtype);
  std::uint64_t term(std::string_view text, const JsonPlace& place) const;

  std::map<std::string, std::uint64_t, std::less<>> sizes_;
  std::map<std::string, Repeat, std::less<>> repeats_;
  std::vector<ModelTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
};

/// Reads the rule-based form of docs/layout-format.md (layout_json_rules.cpp). Errors have the place as their context.
Layout read_rules_layout(const JsonPlace& root, const LayoutFileOptions& options);

/// Returns the dtype that a string names.
DType read_dtype(const JsonPlace& place);

}  // namespace sparsecast
