#pragma once

#include <memory>

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

}  // namespace sparsecast
