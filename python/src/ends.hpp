// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "memory.hpp"
#include "sparsecast/sharded.hpp"
#include "sparsecast/sync.hpp"

namespace sparsecast::python {

/// Returns the opener for "control", "mpi" or "nccl" (on a CUDA ordinal). Throws Error{kUsage} for anything else.
GroupOpener opener_of(const std::string& channels, int device);

/// Binds the reports of flat and sharded syncs.
void bind_reports(nb::module_& m);

}  // namespace sparsecast::python
