// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sparsecast/export.hpp"

namespace sparsecast {

struct DeviceInfo {
  int ordinal = 0;
  std::string name;
  std::string uuid;  ///< "GPU-4f1c...": the same for every process that sees the device.
  std::uint64_t memory_bytes = 0;
  int major = 0;  ///< Compute capability.
  int minor = 0;
};

struct DeviceSurvey {
  std::vector<DeviceInfo> devices;
  std::string
      why_none;  ///< Reason why there are no devices: the driver's message, a missing CUDA runtime, or old devices.
  int runtime_version = 0;  ///< 13000 is 13.0; 0 without a CUDA runtime.
  int driver_version = 0;   ///< Newest CUDA version that the driver supports; 0 without a driver.
};

/// Returns the devices of sm_80 or newer that the CUDA runtime of this build finds. Does not throw when there is no
/// device or driver.
SPARSECAST_API DeviceSurvey survey_devices();

}  // namespace sparsecast
