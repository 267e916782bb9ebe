#pragma once

#include <memory>

#include "sparsecast/control_channel.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/transport.hpp"

namespace sparsecast {

/// True when this build of the library has the MPI transport.
SPARSECAST_API bool mpi_available() noexcept;

/// A channel over ranks [0, size) of an MPI communicator. MPI must be initialised (MPI_THREAD_FUNNELED is enough) and
/// every rank of the communicator must call this together; the communicator is duplicated. `communicator` points to an
/// MPI_Comm; null means MPI_COMM_WORLD (so that no MPI header is needed here). Messages over 2 GiB are cut into
/// pieces. Throws Error{kUnsupported} without MPI.
/// A channel that broke leaves its outstanding requests behind: the job can go on without it, but cannot call
/// MPI_Finalize; end with MPI_Abort, as docs/errors.md explains.
SPARSECAST_API std::unique_ptr<Transport> make_mpi_transport(const void* communicator = nullptr);

/// A control channel over the ranks of an MPI communicator, for example for NcclTransport::open; opened like the
/// transport above, with the same arguments and the same rule after a failure. A star over rank 0, by plain messages.
/// MPI does not say when a rank dies: one that neither speaks nor calls abort() is noticed at the deadline, and named.
SPARSECAST_API std::shared_ptr<ControlChannel> make_mpi_control_channel(const void* communicator = nullptr);

}  // namespace sparsecast
