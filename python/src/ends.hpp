// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "memory.hpp"
#include "sparsecast/sharded.hpp"
#include "sparsecast/sync.hpp"

namespace sparsecast::python {

/// Returns the function that opens a group over the transport `channels`: "control", "mpi" or "nccl" (`device` is the
/// CUDA ordinal for it). Throws Error{kUsage} for any other name.
GroupOpener opener_of(const std::string& channels, int device);

}  // namespace sparsecast::python
