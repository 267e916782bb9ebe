// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace sparsecast::bench {

/// Returns properties, clocks, driver and runtime version of the current device. Throws Error{kDevice}.
nlohmann::json describe_machine();

}  // namespace sparsecast::bench
