// SPDX-License-Identifier: Apache-2.0

// This program is linked without device code: everything for devices says so.

#include <gtest/gtest.h>

#include "sparsecast/publisher.hpp"
#include "sparsecast/subscriber.hpp"
#include "support/expect_error.hpp"

namespace sparsecast::test {
namespace {

TEST(NoDeviceBackend, EveryFactoryIsUnsupported) {
  EXPECT_FALSE(device_backend_available());
  const auto table = std::make_shared<const TensorTable>(std::vector<TensorSpec>{{"t", DType::kBF16, {4}}});
  const auto refused = [](const auto& call) { expect_error(ErrorCode::kUnsupported, call, {"without CUDA"}); };
  refused([&] { make_device_snapshot(table, {nullptr}); });
  refused([&] { make_pinned_snapshot(table, {nullptr}); });
  refused([&] { make_device_cast_snapshot(table, {{}}, {{}}); });
  refused([&] { make_device_fused_cast(table, {nullptr}, {nullptr}); });
  refused([&] { DeviceMaskDetector detector(table, {nullptr}); });
  refused([&] { Subscriber subscriber(table, std::vector<DeviceTensor>(1), {}); });
}

}  // namespace
}  // namespace sparsecast::test
