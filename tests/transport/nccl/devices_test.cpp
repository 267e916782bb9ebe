// SPDX-License-Identifier: Apache-2.0

// Errors on a machine without a usable device.

#include <gtest/gtest.h>

#include "sparsecast/devices.hpp"
#include "transport/nccl/device_api.hpp"

namespace sparsecast {
namespace {

TEST(Devices, AMissingDriverAndAnOldOneAreToldApart) {
  EXPECT_EQ(why_driver_is_too_old(0, 13000), "no CUDA driver is installed (libcuda.so.1 is not found)");
  EXPECT_EQ(why_driver_is_too_old(12040, 13010),
            "the driver is for CUDA 12.4, and this build needs one for CUDA 13 or newer");
}

TEST(Devices, ASurveyHasDevicesOrAReason) {
  const DeviceSurvey survey = survey_devices();
  EXPECT_NE(survey.devices.empty(), survey.why_none.empty());
}

}  // namespace
}  // namespace sparsecast
