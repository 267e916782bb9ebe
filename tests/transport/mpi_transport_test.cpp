// What can be said of the MPI transport in a process that no launcher started; the rest is in mpi_tests/.

#include "sparsecast/mpi_transport.hpp"

#include <gtest/gtest.h>

namespace sparsecast {
namespace {

TEST(MpiTransport, RefusesToOpenAChannelWhenMpiIsMissingOrNotInitialised) {
  try {
    const auto transport = make_mpi_transport();
    FAIL() << "a channel was opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), mpi_available() ? ErrorCode::kUsage : ErrorCode::kUnsupported) << error.what();
  }
}

}  // namespace
}  // namespace sparsecast
