#pragma once

#include <memory>
#include <string>

#include "transport/nccl/nccl_functions.hpp"
#include "sparsecast/nccl_transport.hpp"

namespace sparsecast {

inline constexpr const char* kNcclLibraryVariable = "SPARSECAST_NCCL_LIBRARY";

struct NcclLibrary {
  NcclFunctions functions;
  NcclLibraryInfo info;
};

/// Loads a library and fills the table. `requested`: the one file that is wanted; empty: loaded already, else found.
/// The library stays for the life of the process: NCCL has threads of its own. Throws Error{kUnsupported}.
NcclLibrary load_nccl(const std::string& requested);

/// The process' one library, from the environment.
const NcclLibrary& process_nccl();

}  // namespace sparsecast
