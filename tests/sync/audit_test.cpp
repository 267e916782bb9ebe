// SPDX-License-Identifier: Apache-2.0

// The rolling audit of a subscriber in host memory: which tensors a call reads, and that it finds a flipped bit.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sparsecast/subscriber.hpp"
#include "support/expect_error.hpp"

namespace sparsecast::test {
namespace {

constexpr std::uint64_t kTensors = 64;
constexpr std::uint64_t kTensorBytes = std::uint64_t{1} << 16;

struct Audited {
  explicit Audited(const SubscriberOptions& options) {
    std::vector<TensorSpec> specs;
    for (std::uint64_t t = 0; t < kTensors; ++t) specs.push_back({std::to_string(t), DType::kBF16, {kTensorBytes / 2}});
    table = std::make_shared<const TensorTable>(specs);
    std::vector<TensorRef> live;
    for (std::uint64_t t = 0; t < kTensors; ++t) {
      live.push_back(ref_to(specs[t], bytes.data() + t * kTensorBytes));
    }
    subscriber.emplace(table, live, options);
  }

  std::vector<std::byte> bytes = std::vector<std::byte>(kTensors * kTensorBytes, std::byte{0x3F});
  std::shared_ptr<const TensorTable> table;
  std::optional<Subscriber> subscriber;
};

TEST(Audit, ReadsEveryTensorOnceInSoManyCalls) {
  SubscriberOptions options;
  options.audit_versions = 16;
  Audited audited(options);
  std::uint64_t read = 0;
  for (int call = 0; call < 16; ++call) {
    const std::uint64_t bytes = audited.subscriber->audit_next();
    EXPECT_EQ(bytes, kTensors / 16 * kTensorBytes);
    read += bytes;
  }
  EXPECT_EQ(read, audited.bytes.size());
}

TEST(Audit, ReadsLessWhenItsTimeIsShortAndFindsAFlippedBitAllTheSame) {
  SubscriberOptions options;
  options.audit_versions = 1;
  options.audit_time = std::chrono::microseconds(1);
  Audited audited(options);
  // The first call learns the speed. A microsecond is not enough for 4 MiB on any machine.
  EXPECT_EQ(audited.subscriber->audit_next(), audited.bytes.size());
  std::uint64_t read = 0;
  for (int call = 0; call < 3; ++call) read += audited.subscriber->audit_next();
  EXPECT_LT(read, audited.bytes.size());
  audited.bytes[kTensorBytes * 5 + 7] ^= std::byte{4};
  expect_error(ErrorCode::kDirty,
               [&] {
                 for (int call = 0; call < 1'000'000; ++call) audited.subscriber->audit_next();
               },
               {"tensor '5'"});
}

TEST(Audit, IsOffWithoutVersions) {
  SubscriberOptions options;
  options.audit_versions = 0;
  Audited audited(options);
  EXPECT_EQ(audited.subscriber->audit_next(), 0U);
}

}  // namespace
}  // namespace sparsecast::test
