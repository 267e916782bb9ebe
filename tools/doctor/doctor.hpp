// SPDX-License-Identifier: Apache-2.0
#pragma once

// Checks of `sparsecast doctor`: each has a result, a line of text, and advice.

#include <cstdint>
#include <string>
#include <vector>

#include "sparsecast/device.hpp"
#include "sparsecast/tcp_transport.hpp"

namespace sparsecast::tools {

enum class CheckResult { kGood, kNote, kFailed };

struct Check {
  std::string name;  ///< Name of the check for scripts, which does not change between versions: "nccl", "fabric", ...
  CheckResult result = CheckResult::kGood;
  std::string text;
  std::string cure;  ///< What to do about the result; empty if there is nothing to do.
};

struct DoctorFlags {
  std::string rendezvous;
  int rank = -1;
  int size = 0;
  std::string secret_file;
  std::string interface;
  int device = -1;
  double timeout_seconds = 60;
  bool require_fabric = false;
  bool json = false;
};

/// Facts of this machine that are compared between ranks.
struct MachineFacts {
  DeviceSurvey survey;
  int nccl_version = 0;
  int device = 0;  ///< CUDA device that this rank would use.
};

/// Checks libraries, devices, network interfaces, fabric and environment. Returns the results, and sets `facts`.
std::vector<Check> check_machine(const DoctorFlags& flags, MachineFacts& facts);
/// Meets the other ranks, compares their facts with `facts`, and appends the results to `checks`.
void check_group(const DoctorFlags& flags, const MachineFacts& facts, std::vector<Check>& checks);
/// Returns checks of whether the facts of all ranks (untrusted JSON, by rank) agree, and whether each rank has a GPU of
/// its own.
std::vector<Check> compare_ranks(const std::vector<std::string>& facts);

/// Returns the number of NVLinks that are up, over all GPUs of this machine, as NVML reports them; 0 without NVML or
/// NVLink.
int active_nvlinks();

}  // namespace sparsecast::tools
