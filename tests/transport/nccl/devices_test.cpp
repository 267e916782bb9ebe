// SPDX-License-Identifier: Apache-2.0

// Errors on a machine without a usable device.

#include <gtest/gtest.h>

#include "sparsecast/device.hpp"
#include "transport/nccl/device_api.hpp"

namespace sparsecast {
namespace {

TEST(Devices, AMissingDriverAndAnOldOneAreToldApart) {
  EXPECT_EQ(why_driver_is_too_old(0, 13000), "no CUDA driver is installed (libcuda.so.1 is not found)");
  EXPECT_EQ(why_driver_is_too_old(12040, 13010),
            "the driver is for CUDA 12.4, and this build needs one for CUDA 13 or newer");
}

TEST(Devices, OlderThanSm80AreLeftOutAndNamed) {
  const DeviceInfo v100{0, "Tesla V100", "GPU-0", 1, 7, 0}, t4{1, "Tesla T4", "GPU-1", 1, 7, 5},
      h100{2, "H100", "GPU-2", 1, 9, 0};
  DeviceSurvey mixed;
  mixed.devices = {v100, h100};
  leave_out_old_devices(mixed);
  ASSERT_EQ(mixed.devices.size(), 1U);
  EXPECT_EQ(mixed.devices[0].ordinal, 2);
  EXPECT_EQ(mixed.why_none, "");
  DeviceSurvey old;
  old.devices = {v100, t4};
  leave_out_old_devices(old);
  EXPECT_TRUE(old.devices.empty());
  EXPECT_EQ(old.why_none, "Tesla V100 is sm_70, Tesla T4 is sm_75, and the library needs sm_80 or newer");
}

TEST(Devices, ASurveyHasDevicesOrAReason) {
  const DeviceSurvey survey = survey_devices();
  EXPECT_NE(survey.devices.empty(), survey.why_none.empty());
}

}  // namespace
}  // namespace sparsecast
