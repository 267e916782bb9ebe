// SPDX-License-Identifier: Apache-2.0
#include "store/s3_fault_setup.hpp"
#include "store/store_contract.hpp"
#include "support/congestion.hpp"
#include "support/expect_error.hpp"

namespace sparsecast::test {
namespace {

TEST(S3Congestion, ConnectionsHaveTheAlgorithmOfTheOptions) {
  FakeBucket bucket;
  int found = 0;
  const int before = sockets_with(kPlainCongestion);
  const HttpServer server([&](const HttpQuestion& question) {
    found = sockets_with(kPlainCongestion) - before;
    return bucket(question);
  });
  S3Options options = impatient(server, std::chrono::seconds(20));
  options.congestion = kPlainCongestion;
  open_s3_store(options)->put("a", bytes_of_text("x"));
  EXPECT_EQ(found, 1);
}

TEST(S3Congestion, AnAlgorithmThatTheKernelLacksIsRefusedWhenTheStoreIsOpened) {
  const CongestionVariable variable("carrier-pigeon");
  FaultyBucket faulty;
  expect_error(ErrorCode::kUsage, [&] { faulty.open(); },
               {"no TCP congestion control 'carrier-pigeon'", "available: ", kPlainCongestion});
}

}  // namespace
}  // namespace sparsecast::test
