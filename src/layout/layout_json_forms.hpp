// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layout/json_place.hpp"
#include "sparsecast/layout.hpp"
#include "sparsecast/layout_json.hpp"

namespace sparsecast {

/// The two forms of docs/layout-format.md. Errors have the place as their context.
Layout read_explicit_layout(const JsonPlace& root);
Layout read_rules_layout(const JsonPlace& root, const LayoutFileOptions& options);

/// The dtype that a string names.
DType read_dtype(const JsonPlace& place);

}  // namespace sparsecast
