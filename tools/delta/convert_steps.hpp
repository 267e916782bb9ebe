// SPDX-License-Identifier: Apache-2.0
#pragma once

// Versions among the inputs of `sparsecast convert`, in any format.

#include <optional>
#include <string>
#include <vector>

#include "sparsecast/interop.hpp"

namespace sparsecast::tools {

/// One version among the inputs: a delta, or files of another system. A version number is nullopt if the files do not
/// state it.
struct ConvertStep {
  std::string path;
  std::optional<ForeignStep> foreign;  ///< The files of another system; nullopt if `path` is a delta.
  std::optional<std::uint64_t> base_version;
  std::optional<std::uint64_t> version;
};

/// Returns all versions at the paths `inputs`: in the order of the paths, and those of one directory in order of
/// number. `from` is "auto", "scd" or the name of a format family. Throws the errors of find_foreign_steps and
/// DeltaFile::open.
std::vector<ConvertStep> find_convert_steps(FileSystem& fs, const std::vector<std::string>& inputs,
                                            const std::string& from);

/// Returns the steps after `base_version` (or, if that is nullopt, after the version from which the first step says
/// that it starts), with both version numbers of every step set. Throws Error{kVersionGap} if a step does not follow
/// the version before it.
std::vector<ConvertStep> chain_of(std::vector<ConvertStep> steps, std::optional<std::uint64_t> base_version);

}  // namespace sparsecast::tools
