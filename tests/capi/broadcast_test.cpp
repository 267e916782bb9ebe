// SPDX-License-Identifier: Apache-2.0

// scBroadcast: what arrives, what it costs, and how it comes back from failures.

#include <cstring>
#include <latch>

#include "support/random.hpp"
#include "tests/capi/group.hpp"

namespace sparsecast::test {
namespace {

using Weights = std::vector<std::uint16_t>;
constexpr std::size_t kCount = 200'000;

Weights weights_of(std::uint64_t seed, std::size_t count = kCount) {
  Random random(seed);
  Weights weights(count);
  for (auto& w : weights) w = static_cast<std::uint16_t>(0x3C00 + random.below(1024));
  return weights;
}

/// About one element in a hundred.
void step(Weights& weights, std::uint64_t seed) {
  Random random(seed);
  for (std::size_t i = 0; i < weights.size() / 100; ++i) weights[random.below(weights.size())] += 1;
}

scStats_t stats_of(scBuffer_t buffer) {
  scStats_t stats;
  std::memset(&stats, 0xFF, sizeof(stats));
  expect_success(scGetStats(buffer, &stats));
  return stats;
}

scBuffer_t register_weights(scComm_t comm, Weights& weights) {
  scBuffer_t buffer = nullptr;
  expect_success(scRegister(comm, weights.data(), weights.size(), scBfloat16, scMemoryHost, &buffer));
  return buffer;
}

TEST_F(CApi, EveryBroadcastLeavesAllRanksBitIdentical) {
  run_ranks(3, [](scComm_t& comm, int rank) {
    Weights expected = weights_of(1);
    Weights weights = rank == 0 ? expected : Weights(kCount);
    const scBuffer_t buffer = register_weights(comm, weights);
    EXPECT_EQ(stats_of(buffer).version, 0U);
    for (std::uint64_t n = 0; n < 5; ++n) {
      if (n != 0) step(expected, n);
      if (rank == 0) weights = expected;
      expect_success(scBroadcast(buffer, 0, nullptr));
      EXPECT_EQ(weights, expected);
      const scStats_t stats = stats_of(buffer);
      EXPECT_EQ(stats.version, n + 1);
      EXPECT_EQ(stats.broadcasts, n + 1);
      EXPECT_EQ(stats.anchor, n == 0 ? 1 : 0);
      EXPECT_EQ(stats.anchors, 1U);
      EXPECT_EQ(stats.dense_bytes, 2 * kCount);
      EXPECT_EQ(stats.dirty, 0);
      EXPECT_GT(stats.changed, 0U);
      if (n == 0) {
        EXPECT_EQ(stats.wire_bytes, 2 * kCount);
      } else {
        EXPECT_LT(stats.wire_bytes, kCount / 20);
      }
      expect_success(scAudit(buffer));
    }
    expect_success(scDeregister(buffer));
  });
}

TEST_F(CApi, AnAnchorOfWhatAllHoldAlreadySendsNothing) {
  run_ranks(3, [](scComm_t& comm, int rank) {
    Weights weights = weights_of(2);
    const scBuffer_t buffer = register_weights(comm, weights);
    expect_success(scBroadcast(buffer, 1, nullptr));
    EXPECT_EQ(stats_of(buffer).anchor, 1);
    EXPECT_EQ(stats_of(buffer).wire_bytes, 0U);
    EXPECT_EQ(stats_of(buffer).changed, 0U);
    if (rank == 1) weights[7] ^= 1;
    expect_success(scBroadcast(buffer, 1, nullptr));
    EXPECT_EQ(stats_of(buffer).anchor, 0);
    EXPECT_EQ(stats_of(buffer).changed, 1U);
  });
}

TEST_F(CApi, ChangingTheRootIsAnAnchorEachTime) {
  run_ranks(3, [](scComm_t& comm, int rank) {
    Weights expected = weights_of(3);
    Weights weights = expected;
    const scBuffer_t buffer = register_weights(comm, weights);
    for (const int root : {0, 2, 2, 1, 0}) {
      step(expected, static_cast<std::uint64_t>(root) + 10);
      if (rank == root) weights = expected;
      expect_success(scBroadcast(buffer, root, nullptr));
      EXPECT_EQ(weights, expected);
    }
    EXPECT_EQ(stats_of(buffer).anchors, 4U);
    EXPECT_EQ(stats_of(buffer).version, 5U);
  });
}

template <class Element>
void round_trip(scDataType_t dtype) {
  SCOPED_TRACE(static_cast<int>(dtype));
  run_ranks(2, [&](scComm_t& comm, int rank) {
    std::vector<Element> data(3000);
    if (rank == 0) {
      Random random(4);
      for (auto& value : data) value = static_cast<Element>(random.next());
    }
    scBuffer_t buffer = nullptr;
    expect_success(scRegister(comm, data.data(), data.size(), dtype, scMemoryHost, &buffer));
    expect_success(scBroadcast(buffer, 0, nullptr));
    if (rank == 0) data[2999] ^= 1;
    expect_success(scBroadcast(buffer, 0, nullptr));
    EXPECT_EQ(stats_of(buffer).changed, 1U);
    std::vector<Element> expected(3000);
    Random random(4);
    for (auto& value : expected) value = static_cast<Element>(random.next());
    expected[2999] ^= 1;
    EXPECT_EQ(data, expected);
  });
}

TEST_F(CApi, EveryDataTypeArrivesBitForBit) {
  for (const scDataType_t dtype : {scFloat8e4m3, scFloat8e5m2, scInt8, scUint8, scBool, scInt4x2, scFloat4e2m1x2,
                                   scFloat8e8m0, scFloat8e4m3fnuz, scFloat8e5m2fnuz, scFloat6e2m3, scFloat6e3m2})
    round_trip<std::uint8_t>(dtype);
  for (const scDataType_t dtype : {scBfloat16, scFloat16, scInt16, scUint16}) round_trip<std::uint16_t>(dtype);
  for (const scDataType_t dtype : {scFloat32, scInt32, scUint32}) round_trip<std::uint32_t>(dtype);
  for (const scDataType_t dtype : {scFloat64, scInt64, scUint64, scComplex64}) round_trip<std::uint64_t>(dtype);
}

TEST_F(CApi, NoElementsIsABroadcastOfNothing) {
  run_ranks(2, [](scComm_t& comm, int) {
    scBuffer_t buffer = nullptr;
    expect_success(scRegister(comm, nullptr, 0, scFloat32, scMemoryHost, &buffer));
    for (int n = 0; n < 3; ++n) expect_success(scBroadcast(buffer, 0, nullptr));
    EXPECT_EQ(stats_of(buffer).wire_bytes < 1000, true);
    EXPECT_EQ(stats_of(buffer).dense_bytes, 0U);
  });
}

TEST_F(CApi, SeveralTensorsGoAsOneAndBuffersGoSideBySide) {
  run_ranks(2, [](scComm_t& comm, int rank) {
    std::vector<float> matrix(6, rank == 0 ? 1.5F : 0.0F);
    Weights vector(10, static_cast<std::uint16_t>(rank == 0 ? 9 : 0));
    double scalar = rank == 0 ? 2.5 : 0;
    const std::uint64_t shape[] = {2, 3};
    const std::uint64_t length[] = {10};
    const scTensor_t tensors[] = {{"matrix", matrix.data(), scFloat32, 2, shape},
                                  {"vector", vector.data(), scBfloat16, 1, length},
                                  {"scalar", &scalar, scFloat64, 0, nullptr}};
    scBuffer_t several = nullptr;
    expect_success(scRegisterTensors(comm, tensors, 3, scMemoryHost, &several));
    Weights other(50, static_cast<std::uint16_t>(rank));
    const scBuffer_t single = register_weights(comm, other);
    expect_success(scBroadcast(single, 1, nullptr));
    expect_success(scBroadcast(several, 0, nullptr));
    EXPECT_EQ(other, Weights(50, 1));
    EXPECT_EQ(matrix, std::vector<float>(6, 1.5F));
    EXPECT_EQ(vector, Weights(10, 9));
    EXPECT_EQ(scalar, 2.5);
    EXPECT_EQ(stats_of(several).dense_bytes, 6 * 4 + 10 * 2 + 8U);
  });
}

TEST_F(CApi, AReceiverThatWasWrittenIntoIsFoundByTheAuditAndRepaired) {
  run_ranks(3, [](scComm_t& comm, int rank) {
    Weights expected = weights_of(5);
    Weights weights = expected;
    const scBuffer_t buffer = register_weights(comm, weights);
    expect_success(scBroadcast(buffer, 0, nullptr));
    if (rank == 2) {
      weights[123] ^= 0x8000;
      expect_result(scAudit(buffer), scDirty, "scAudit");
      EXPECT_EQ(stats_of(buffer).dirty, 1);
      expect_result(scAudit(buffer), scDirty, "earlier failure");
      EXPECT_NE(std::string(scGetLastError(comm)).find("scAudit"), std::string::npos);
    } else {
      expect_success(scAudit(buffer));
    }
    step(expected, 1);
    if (rank == 0) weights = expected;
    expect_success(scBroadcast(buffer, 0, nullptr));
    EXPECT_EQ(weights, expected);
    EXPECT_EQ(stats_of(buffer).anchor, 1);
    EXPECT_EQ(stats_of(buffer).dirty, 0);
    expect_success(scAudit(buffer));
  });
}

TEST_F(CApi, ADeltaThatMeetsForeignBytesFailsEverywhereAndTheNextBroadcastRepairs) {
  run_ranks(3, [](scComm_t& comm, int rank) {
    Weights expected = weights_of(6);
    Weights weights = expected;
    const scBuffer_t buffer = register_weights(comm, weights);
    expect_success(scBroadcast(buffer, 0, nullptr));
    if (rank == 1) weights[77] ^= 0x0101;
    expected[77] += 1;
    if (rank == 0) weights = expected;
    const scResult_t result = scBroadcast(buffer, 0, nullptr);
    expect_result(result, rank == 1 ? scDigestMismatch : scPeerFailed);
    EXPECT_EQ(stats_of(buffer).dirty, rank == 1 ? 1 : 0);
    EXPECT_EQ(stats_of(buffer).version, 1U);
    expect_success(scBroadcast(buffer, 0, nullptr));
    EXPECT_EQ(weights, expected);
    EXPECT_EQ(stats_of(buffer).anchors, 2U);
    EXPECT_EQ(stats_of(buffer).dirty, 0);
  });
}

TEST_F(CApi, ARankThatGivesUpFailsTheOthersAtOnceAndANewCommunicatorServes) {
  Weights replicas[2] = {weights_of(7), weights_of(8)};
  std::latch looked(3);  // A rank that is slow must not see the end of another one before it is to.
  run_ranks(3, [&](scComm_t& comm, int rank) {
    Weights spare = weights_of(9);
    Weights& weights = rank == 2 ? spare : replicas[rank];
    const scBuffer_t buffer = register_weights(comm, weights);
    expect_success(scBroadcast(buffer, 0, nullptr));
    scResult_t state = scInternalError;
    expect_success(scCommGetAsyncError(comm, &state));
    EXPECT_EQ(state, scSuccess);
    looked.arrive_and_wait();
    if (rank == 2) {
      expect_success(scCommAbort(comm));
      expect_result(scCommGetAsyncError(comm, &state), scInvalidUsage);
      expect_result(scBroadcast(buffer, 0, nullptr), scInvalidUsage, "no buffer");
      comm = nullptr;
      return;
    }
    expect_result(scBroadcast(buffer, 0, nullptr), scPeerFailed);
    expect_success(scCommGetAsyncError(comm, &state));
    EXPECT_EQ(state, scPeerFailed);
    EXPECT_STRNE(scGetLastError(comm), "");
    expect_result(scBroadcast(buffer, 0, nullptr), scPeerFailed, "broken");
    EXPECT_EQ(stats_of(buffer).version, 1U);
    EXPECT_EQ(stats_of(buffer).dirty, 0);
  });
  EXPECT_EQ(replicas[0], replicas[1]);
  run_ranks(2, [&](scComm_t& comm, int rank) {
    const scBuffer_t buffer = register_weights(comm, replicas[rank]);
    if (rank == 0) step(replicas[0], 1);
    expect_success(scBroadcast(buffer, 0, nullptr));
  });
  EXPECT_EQ(replicas[0], replicas[1]);
}

TEST_F(CApi, ASilentRankIsATimeoutThatNamesIt) {
  std::latch failed(2);
  run_ranks(
      3,
      [&](scComm_t& comm, int rank) {
        Weights weights = weights_of(10);
        const scBuffer_t buffer = register_weights(comm, weights);
        if (rank == 1) return failed.wait();
        expect_result(scBroadcast(buffer, 0, nullptr), scTimeout, "rank 1");
        failed.count_down();
      },
      2000);
}

}  // namespace
}  // namespace sparsecast::test
