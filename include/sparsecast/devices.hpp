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
  std::string why_none;     ///< When there are none: the driver's own words, or that this build has no CUDA runtime.
  int runtime_version = 0;  ///< 13000 is 13.0; 0 without.
  int driver_version = 0;   ///< The newest CUDA that the driver serves; 0 without a driver.
};

/// What the CUDA runtime of this build sees. Never throws for want of a device or driver.
SPARSECAST_API DeviceSurvey survey_devices();

}  // namespace sparsecast
