// SPDX-License-Identifier: Apache-2.0

// Which errors of the CUDA runtime mean that a machine cannot do it, and what is said of them.

#include <gtest/gtest.h>

#include "cuda/common/runtime.hpp"
#include "tests/support/expect_error.hpp"

namespace sparsecast::test {
namespace {

TEST(CudaErrors, OfWhatAMachineLacksAreUnsupportedAndSayWhatHelps) {
  // Codes as users see them: names of other toolkits' headers may differ.
  const std::pair<int, const char*> cures[] = {{2, "call: "},           {34, "'stubs'"},
                                               {35, "newer driver"},    {36, "newer driver"},
                                               {46, "exclusive mode"},  {98, "sm_80 or newer"},
                                               {100, "call: "},         {200, "sm_80 or newer"},
                                               {209, "sm_80 or newer"}, {221, "only PTX"},
                                               {222, "only PTX"},       {223, "only PTX"},
                                               {802, "fabric manager"}, {803, "different versions"},
                                               {804, "cuda-compat"}};
  for (const auto& [code, cure] : cures) {
    SCOPED_TRACE(code);
    const auto error = static_cast<cudaError_t>(code);
    expect_error(ErrorCode::kUnsupported, [&] { cuda::check(error, "call"); }, {"call: cudaError", cure});
  }
}

TEST(CudaErrors, OfAnythingElseAreTheDevices) {
  for (const int code : {1, 101, 400, 700, 719, 999}) {
    SCOPED_TRACE(code);
    expect_error(ErrorCode::kDevice, [&] { cuda::check(static_cast<cudaError_t>(code), "call"); }, {"call: "});
  }
}

TEST(CudaErrors, SuccessIsNone) { cuda::check(cudaSuccess, "call"); }

}  // namespace
}  // namespace sparsecast::test
