#pragma once

#include <memory>
#include <string>

#include "memory.hpp"
#include "sparsecast/sharded.hpp"
#include "sparsecast/transport.hpp"

namespace sparsecast::python {

/// "control", "mpi" or "nccl" (on a CUDA ordinal). Error{kUsage} for anything else.
GroupOpener opener_of(const std::string& channels, int device);

/// A sync's figures, of either kind, as attributes of one Python object.
void bind_reports(nb::module_& m);

}  // namespace sparsecast::python
