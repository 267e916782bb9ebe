// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "sparsecast/delta.hpp"
#include "sparsecast/safetensors.hpp"

namespace sparsecast::tools {

/// Throws Error{kWrongBase} that names the checkpoint `path` unless the delta starts from its `digest`.
void require_base(const StateDigest& digest, const std::string& path, const DeltaFile& delta);

/// Opens the checkpoint that the delta starts from, and reads it in full to verify that. Throws Error{kTableMismatch |
/// kWrongBase}, and what opening a checkpoint throws.
Checkpoint open_base(FileSystem& fs, const std::string& path, const DeltaFile& delta, int threads);

}  // namespace sparsecast::tools
