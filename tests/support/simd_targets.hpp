// SPDX-License-Identifier: Apache-2.0
#pragma once

// Runs the SIMD kernels of every instruction set that this machine has.

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdint>

namespace sparsecast::test {

/// Calls work() for each instruction set that this machine has, one after another.
template <class Work>
void for_each_target(const Work& work) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::GetChosenTarget().Update(target);
    work();
  }
  hwy::GetChosenTarget().DeInit();
}

}  // namespace sparsecast::test
