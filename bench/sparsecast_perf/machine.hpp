// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "sparsecast/device.hpp"

namespace sparsecast::perf {

/// What a run on devices or over NCCL needs of this machine and this build.
struct Machine {
  bool device_backend = false;  ///< This build has it.
  DeviceSurvey survey;
  int nccl_version = 0;     ///< 22809 is 2.28.9; 0 without.
  std::string why_no_nccl;  ///< Where nccl_version is 0.
};

/// Asks CUDA and NCCL in a short-lived process of its own: CUDA does not survive a fork, and the caller may be about to
/// start ranks. Throws Error{kDevice} when that process fails or is silent for `timeout`.
Machine probe_machine(std::chrono::milliseconds timeout);

/// The same in this process, which can then start no ranks.
Machine survey_machine();

}  // namespace sparsecast::perf
