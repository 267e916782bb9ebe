// SPDX-License-Identifier: Apache-2.0

// This program is linked without device code: everything for devices says so.

#include <gtest/gtest.h>

#include "sparsecast/publisher.hpp"
#include "sparsecast/subscriber.hpp"
#include "support/detectors.hpp"
#include "support/expect_error.hpp"

namespace sparsecast::test {
namespace {

TEST(NoDeviceBackend, EveryFactoryIsUnsupported) {
  EXPECT_FALSE(device_backend_available());
  const auto table = std::make_shared<const TensorTable>(std::vector<TensorSpec>{{"t", DType::kBF16, {4}}});
  const auto refused = [](const auto& call) { expect_error(ErrorCode::kUnsupported, call, {"without CUDA"}); };
  refused([&] { device_snapshot(table, {nullptr}); });
  refused([&] { pinned_snapshot(table, {nullptr}); });
  refused([&] { device_snapshot_over(table, device_refs(*table, {nullptr}), device_refs(*table, {nullptr})); });
  refused([&] { device_fused_cast(table, {nullptr}, {nullptr}); });
  refused([&] { device_mask(table, {nullptr}); });
  refused([&] { Subscriber subscriber(table, device_refs(*table, {nullptr}), {}); });
}

}  // namespace
}  // namespace sparsecast::test
