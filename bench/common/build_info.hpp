#pragma once

#include <string_view>

namespace sparsecast::bench {

// Defined in a source that bench/common/build_info.cmake writes at every build, if one of the two has changed.

/// What `git describe --always --dirty` says of the sources that were built; "unknown" outside of a git checkout.
std::string_view build_commit() noexcept;
/// SHA-256 of the list of SHA-256 sums of all files in cuda/, the same as scripts/gpu_check.sh computes.
std::string_view build_cuda_hash() noexcept;
/// CMake's build type: "Release".
std::string_view build_type() noexcept;

}  // namespace sparsecast::bench
