#pragma once

// The versions that `sparsecast convert` is given, in any format.

#include <optional>
#include <string>
#include <vector>

#include "sparsecast/interop.hpp"

namespace sparsecast::tools {

/// One version: a delta of ours, or files of another system.
struct ConvertStep {
  std::string path;
  std::optional<ForeignStep> foreign;  ///< Empty: `path` is a delta.
  std::optional<std::uint64_t> base_version;
  std::optional<std::uint64_t> version;
};

/// All versions at the inputs, in the order given, those of a directory by number. `from`: "auto", "scd" or a family's
/// name. Throws what find_foreign_steps and DeltaFile::open throw.
std::vector<ConvertStep> find_convert_steps(FileSystem& fs, const std::vector<std::string>& inputs,
                                            const std::string& from);

/// Gives every step its two versions, beginning at `base_version` (or, without, where the first step says that it
/// begins), and drops those up to it. Throws Error{kVersionGap} where a difference does not follow the version before.
std::vector<ConvertStep> chain_of(std::vector<ConvertStep> steps, std::optional<std::uint64_t> base_version);

}  // namespace sparsecast::tools
