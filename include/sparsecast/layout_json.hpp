#pragma once

#include <string>
#include <string_view>

#include "sparsecast/export.hpp"
#include "sparsecast/io.hpp"
#include "sparsecast/layout.hpp"

namespace sparsecast {

/// How a layout file is read.
struct LayoutFileOptions {
  /// Divides every dimension that the file declares as scalable (hidden size, vocabulary, ...) by this, and keeps every
  /// n-th of the repeats that it declares so (layers, experts); cuts stay: the same plan in small, for trying it out.
  /// docs/layout-format.md says how, exactly. What does not divide evenly is Error{kUsage}.
  std::uint64_t scale_down = 1;
  /// The most shards, and local tensors, that rules may make: some 250 bytes each.
  std::size_t max_shards = std::size_t{1} << 22;
};

/// Reads a layout in the JSON form of docs/layout-format.md. `name` goes into errors. Throws Error{kCorrupt} that names
/// the file and the place in it ("cuts[3].tensors") for anything that is not such a layout, and kUnsupported for
/// another version of the format.
SPARSECAST_API Layout parse_layout_json(std::string_view json, const std::string& name,
                                        const LayoutFileOptions& options = {});
SPARSECAST_API Layout read_layout_file(FileSystem& fs, const std::string& path, const LayoutFileOptions& options = {});
/// The explicit form, every shard of every rank; parse_layout_json makes an equal layout of it.
SPARSECAST_API std::string layout_to_json(const Layout& layout);

}  // namespace sparsecast
