#pragma once

// What `sparsecast doctor` finds out: checks, each with a verdict, a line, and what to do.

#include <cstdint>
#include <string>
#include <vector>

#include "sparsecast/devices.hpp"
#include "sparsecast/network.hpp"

namespace sparsecast::tools {

enum class CheckResult { kGood, kNote, kFailed };

struct Check {
  std::string name;  ///< Stable, for scripts: "nccl", "fabric", ...
  CheckResult verdict = CheckResult::kGood;
  std::string text;
  std::string cure;  ///< What to do; empty when there is nothing to do.
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

/// What this machine told, for the comparison between ranks.
struct MachineFacts {
  DeviceSurvey survey;
  int nccl_version = 0;
  int device = 0;  ///< The one that this rank would use.
};

/// Libraries, devices, interfaces, fabric, environment.
std::vector<Check> check_machine(const DoctorFlags& flags, MachineFacts& facts);
/// Meets the other ranks and compares. Adds to the checks.
void check_group(const DoctorFlags& flags, const MachineFacts& facts, std::vector<Check>& checks);
/// What the ranks say of themselves (JSON, not trusted), rank by rank: do they agree, has each a GPU of its own?
std::vector<Check> compare_ranks(const std::vector<std::string>& facts);

/// Links of the machine's GPUs that are up, by NVML; 0 without NVML or NVLink.
int active_nvlinks();

}  // namespace sparsecast::tools
