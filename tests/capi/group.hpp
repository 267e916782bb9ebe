// SPDX-License-Identifier: Apache-2.0
#pragma once

// Threads of one process as the ranks of a C communicator.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "sparsecast/sparsecast.h"
#include "sparsecast/tcp_transport.hpp"

namespace sparsecast::test {

/// Returns a result as text for EXPECT_EQ: the code, and the message of a failure.
inline std::string said(scResult_t result) {
  return std::string(scGetErrorString(result)) +
         (result == scSuccess ? "" : " | " + std::string(scGetLastErrorMessage()));
}

inline void expect_success(scResult_t result) { EXPECT_EQ(said(result), "success"); }

/// The result has this code, and its sentence contains `words`.
inline void expect_result(scResult_t result, scResult_t expected, const std::string& words = {}) {
  EXPECT_EQ(std::string(scGetErrorString(result)), scGetErrorString(expected)) << scGetLastErrorMessage();
  const std::string sentence = scGetLastErrorMessage();
  EXPECT_NE(sentence.find(words), std::string::npos) << "'" << words << "' is not in: " << sentence;
}

inline scConfig_t tcp_config(int timeout_ms = 20000) {
  scConfig_t config = SC_CONFIG_INITIALIZER;
  config.transport = scTransportTcp;
  config.timeout_ms = timeout_ms;
  return config;
}

/// Every rank on a thread of its own with its communicator, which is destroyed unless the body set it to null.
inline void run_ranks(int size, const std::function<void(scComm_t& comm, int rank)>& body, int timeout_ms = 20000) {
  scUniqueId id;
  expect_success(scGetUniqueIdOn(&id, "lo"));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const scConfig_t config = tcp_config(timeout_ms);
      scComm_t comm = nullptr;
      expect_success(scCommInitRank(&comm, size, id, rank, &config));
      if (comm == nullptr) return;
      body(comm, rank);
      expect_success(scCommDestroy(comm));
    });
  }
}

class CApi : public testing::Test {
 protected:
  void SetUp() override {
    if (!rendezvous_available()) GTEST_SKIP() << "the ranks meet over TCP; built without libsodium";
  }
};

}  // namespace sparsecast::test
