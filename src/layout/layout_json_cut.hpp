// SPDX-License-Identifier: Apache-2.0
#pragma once

// The parts of an entry in "cuts" that do not depend on which tensors it names.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "layout/json_place.hpp"
#include "layout/layout_json_model.hpp"
#include "sparsecast/layout_builders.hpp"

namespace sparsecast {

/// "rule" of a cut, and the fields that go with it.
Cut read_cut(const JsonPlace& place, const LayoutModel& model);

/// "where" of a cut.
Where read_where(const JsonPlace& place);

/// "experts" of a cut.
class ExpertsEntry {
 public:
  /// `canonically_stacked`: the experts are one tensor, whose first dimension counts only those that are kept.
  ExpertsEntry(const JsonPlace& place, const LayoutModel& model, bool canonically_stacked);

  /// Returns the experts of a local tensor of these variables; a map may be given for each layer.
  Experts of(const Assignment& assignment) const;

 private:
  std::vector<std::uint32_t> read_map(const JsonPlace& place) const;
  /// Returns the experts that scaling down has left, as the builder counts them.
  std::vector<std::uint32_t> kept_of(const std::vector<std::uint32_t>& experts) const;

  const LayoutModel::Repeat& repeat_;
  bool canonically_stacked_;
  Experts experts_;
  std::map<std::uint32_t, std::vector<std::uint32_t>> by_layer_;
};

}  // namespace sparsecast
