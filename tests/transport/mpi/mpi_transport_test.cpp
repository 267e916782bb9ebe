// SPDX-License-Identifier: Apache-2.0

// Tests of the MPI transport in a process that no launcher started; the rest is in mpi_tests/.

#include "sparsecast/mpi_transport.hpp"

#include <gtest/gtest.h>

#include "support/expect_error.hpp"

namespace sparsecast {
namespace {

TEST(MpiTransport, RefusesToOpenAChannelWhenMpiIsMissingOrNotInitialised) {
  test::expect_error(mpi_available() ? ErrorCode::kUsage : ErrorCode::kUnsupported, [] { make_mpi_transport(); });
}

}  // namespace
}  // namespace sparsecast
