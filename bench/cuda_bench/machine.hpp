#pragma once

#include <nlohmann/json_fwd.hpp>

namespace sparsecast::bench {

/// The current device, its driver and clocks.
nlohmann::json describe_machine();

}  // namespace sparsecast::bench
