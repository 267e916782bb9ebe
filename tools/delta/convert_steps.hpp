// SPDX-License-Identifier: Apache-2.0
#pragma once

// Versions among the inputs of `sparsecast convert`, in any format.

#include <optional>
#include <string>
#include <vector>

#include "sparsecast/interop.hpp"

namespace sparsecast::tools {

/// One version: a delta, or files of another system.
struct ConvertStep {
  std::string path;
  std::optional<ForeignStep> foreign;  ///< Nullopt if `path` is a delta.
  std::optional<std::uint64_t> base_version;
  std::optional<std::uint64_t> version;
};

/// Returns all versions at the inputs in the given order, those of a directory in order of number. `from`: "auto",
/// "scd" or the name of a format family. Throws the errors of find_foreign_steps and DeltaFile::open.
std::vector<ConvertStep> find_convert_steps(FileSystem& fs, const std::vector<std::string>& inputs,
                                            const std::string& from);

/// Sets the two version numbers of every step, starting at `base_version` (or, if empty, where the first step says that
/// it starts), and drops the steps up to it. Throws Error{kVersionGap} if a step does not follow the version before it.
std::vector<ConvertStep> chain_of(std::vector<ConvertStep> steps, std::optional<std::uint64_t> base_version);

}  // namespace sparsecast::tools
