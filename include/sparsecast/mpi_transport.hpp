// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "sparsecast/control_channel.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/transport.hpp"

namespace sparsecast {

/// Returns true when this build of the library has the MPI transport.
SPARSECAST_API bool mpi_available() noexcept;

/// Makes a channel over ranks [0, size) of an MPI communicator. MPI must be initialised (MPI_THREAD_FUNNELED is enough)
/// and every rank of the communicator must call this together; the communicator is duplicated. `communicator` points to
/// an MPI_Comm, so that no MPI header is needed here; null means MPI_COMM_WORLD. Messages over 2 GiB are cut into
/// pieces. Throws Error{kUnsupported} in a build without MPI. A broken channel leaves outstanding requests behind: the
/// job can continue without the channel, but cannot call MPI_Finalize and must end with MPI_Abort, as docs/errors.md
/// explains.
SPARSECAST_API std::unique_ptr<Transport> make_mpi_transport(const void* communicator = nullptr);
/// Makes the channel over the communicator of `control`, a channel that make_mpi_control_channel() returned; a channel
/// that split() returned is not accepted. At most one transport can be made for each control channel. Throws
/// Error{kUsage} for another control channel.
SPARSECAST_API std::unique_ptr<Transport> make_mpi_transport(std::shared_ptr<ControlChannel> control);

/// Makes a control channel over the ranks of an MPI communicator, for example for NcclTransport::open. `communicator`
/// points to an MPI_Comm, which is duplicated; null means MPI_COMM_WORLD. After a failure the job must end with
/// MPI_Abort, as for make_mpi_transport(). The channel is a star over rank 0, with point-to-point messages. MPI does
/// not report when a rank dies: a rank that is silent and has not called abort() is detected at the deadline, and
/// named.
SPARSECAST_API std::shared_ptr<ControlChannel> make_mpi_control_channel(const void* communicator = nullptr);

}  // namespace sparsecast
