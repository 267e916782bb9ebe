#pragma once

#include <functional>
#include <memory>

#include "sparsecast/sharded.hpp"

namespace sparsecast {

/// Opens the communicator of the whole world.
using NcclWorldOpener = std::function<std::unique_ptr<NcclTransport>(std::shared_ptr<ControlChannel>, Deadline)>;

/// open_nccl_channels over whatever that opens.
ChannelOpener split_nccl_channels(NcclWorldOpener open_world);

}  // namespace sparsecast
