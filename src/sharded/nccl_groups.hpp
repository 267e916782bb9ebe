#pragma once

#include <functional>
#include <memory>

#include "sparsecast/sharded.hpp"

namespace sparsecast {

/// Opens the communicator of the whole world.
using NcclWorldOpener = std::function<std::unique_ptr<NcclTransport>(std::shared_ptr<ControlChannel>, Deadline)>;

/// open_nccl_groups over whatever that opens.
GroupOpener split_nccl_groups(NcclWorldOpener open_world);

}  // namespace sparsecast
