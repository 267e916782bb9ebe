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

/// One value for each variable in a name, as pairs of variable and value.
using Assignment = std::vector<std::pair<std::string, std::uint32_t>>;
/// For each variable, the values that it takes, ascending.
using Values = std::map<std::string, std::vector<std::uint32_t>>;

/// Calls call(assignment) for every combination of the values of these variables. The value of the last variable
/// changes fastest.
void for_each_assignment(const std::vector<std::string>& variables, const Values& values,
                         const std::function<void(const Assignment&)>& call);
/// Returns the name pattern with its variables replaced by their values in `assignment`.
std::string assigned(const std::string& pattern, const Assignment& assignment);

/// Returns the numbers at `place`, which is either a string such as "0-3,7" or an array of numbers. Each number must be
/// below `limit`, and there may be at most `limit` numbers; otherwise throws Error{kCorrupt}.
std::vector<std::uint32_t> read_indices(const JsonPlace& place, std::uint64_t limit);

/// The declarations of the model in a rule-based layout file (docs/layout-format.md): named sizes, named repeats, and
/// the tensors that use them. `scale_down` of the constructor makes the model smaller: a size that the file marks as
/// scalable is divided by it, and a scalable repeat keeps only every scale_down-th of its values. The file may limit
/// this divisor.
class LayoutModel {
 public:
  struct ModelTensor {
    std::string name;  ///< Name pattern, whose variables are in braces.
    std::vector<std::string> variables;
    Values values;
    DType dtype = DType::kBF16;
    std::vector<std::uint64_t> shape;
  };
  struct Repeat {
    /// Number of values that the file declares.
    std::uint32_t declared = 0;
    std::vector<std::uint32_t> kept;  ///< The values that are kept: all of them, unless the repeat is scaled down.
  };

  LayoutModel(const JsonPlace& root, std::uint64_t scale_down);

  const std::vector<ModelTensor>& tensors() const noexcept { return tensors_; }
  /// Returns the index in tensors() of the tensor that is declared with this name pattern. Throws Error{kCorrupt} at
  /// `place` if there is none.
  std::size_t find(const std::string& name, const JsonPlace& place) const;
  /// Returns the repeat with this name. Throws Error{kCorrupt} at `place` if there is none.
  const Repeat& repeat(const std::string& name, const JsonPlace& place) const;
  /// Returns the value of the expression at `place`. The expression is a number, or a string with a sum of products of
  /// numbers and names of sizes and repeats, such as "heads*nope+heads*rope". The value of a repeat is its number of
  /// kept values.
  std::uint64_t evaluate(const JsonPlace& place) const;
  /// Declares every tensor of the model to `builder`, once for each combination of the values of its variables.
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

/// Returns the layout that a file in the rule-based form of docs/layout-format.md describes. `root` is the root of the
/// file. Errors have the place in the file as their context.
Layout read_rules_layout(const JsonPlace& root, const LayoutFileOptions& options);

/// Returns the dtype whose name is the string at `place`. Throws Error{kCorrupt} for any other value.
DType read_dtype(const JsonPlace& place);

}  // namespace sparsecast
