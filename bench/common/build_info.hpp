// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace sparsecast::bench {

// Defined in a source that bench/common/build_info.cmake checks at every build and writes when it changes.

/// Returns the output of `git describe --always --dirty` for the sources that were built; outside of a git checkout the
/// environment's SPARSECAST_COMMIT at build time, else "unknown".
std::string_view build_commit() noexcept;
/// Returns the SHA-256 of the list of SHA-256 sums of all files in cuda/, the same as scripts/gpu_check.sh computes.
std::string_view build_cuda_hash() noexcept;
/// Returns CMake's build type, such as "Release".
std::string_view build_type() noexcept;

}  // namespace sparsecast::bench
