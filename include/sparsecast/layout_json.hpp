// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "sparsecast/export.hpp"
#include "sparsecast/io.hpp"
#include "sparsecast/layout.hpp"

namespace sparsecast {

/// Options for reading a layout file.
struct LayoutFileOptions {
  /// Factor that divides every dimension that the file declares as scalable (hidden size, vocabulary, ...). Every n-th
  /// of the scalable repeats (layers, experts) is kept. Cuts stay as they are. The result is a small version of the
  /// same plan, for trials. docs/layout-format.md has the exact rules. A dimension that does not divide evenly is
  /// Error{kUsage}.
  std::uint64_t scale_down = 1;
  /// Maximum number of shards, and of local tensors, that rules may make. Each takes about 250 bytes.
  std::size_t max_shards = std::size_t{1} << 22;
};

/// Reads a layout in the JSON form of docs/layout-format.md. `name` appears in error messages. Throws Error{kCorrupt}
/// that names the file and the place in it ("cuts[3].tensors") for anything that is not a valid layout, and
/// kUnsupported for another version of the format.
SPARSECAST_API Layout parse_layout_json(std::string_view json, const std::string& name,
                                        const LayoutFileOptions& options = {});
SPARSECAST_API Layout read_layout_file(FileSystem& fs, const std::string& path, const LayoutFileOptions& options = {});
/// Returns the explicit form, with every shard of every rank. parse_layout_json reads it back as an equal layout.
SPARSECAST_API std::string layout_to_json(const Layout& layout);

}  // namespace sparsecast
