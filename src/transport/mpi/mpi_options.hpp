// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "sparsecast/transport.hpp"
#include "transport/message_plan.hpp"

namespace sparsecast {

/// Creates an MPI transport with other limits than the default; every rank must give the same `piece_bytes`.
std::unique_ptr<Transport> make_mpi_transport(const void* communicator, const WireLimits& limits);

}  // namespace sparsecast
