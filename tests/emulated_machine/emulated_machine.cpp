// SPDX-License-Identifier: Apache-2.0

// The machine that a whole program with ranks of its own runs on, where there is none: emulated devices, one that all
// ranks share unless SPARSECAST_EMULATED_DEVICES says how many, and the fake NCCL, whose ranks are the processes. The
// linker puts these three functions in the place of the library's (--wrap, tests/EmulatedMachine.cmake).

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "sparsecast/device.hpp"
#include "tests/support/fake_nccl.hpp"
#include "transport/nccl/nccl_library.hpp"

namespace sparsecast::test {
namespace {

constexpr const char* kVariable = "SPARSECAST_EMULATED_MACHINE";

/// The directory that the ranks share; made by the first process, before main(), and removed by it.
class Directory {
 public:
  Directory() {
    if (std::getenv(kVariable) != nullptr) return;
    std::string path = (std::filesystem::temp_directory_path() / "emulated_machine_XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) std::abort();
    setenv(kVariable, path.c_str(), 1);
    maker_ = ::getpid();
  }
  ~Directory() {
    std::error_code ignored;
    if (maker_ == ::getpid()) std::filesystem::remove_all(std::getenv(kVariable), ignored);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

 private:
  pid_t maker_ = -1;
};
const Directory directory;

/// The machine of a process that requested it. The process fails after undefined use of NCCL, or after a report of the
/// emulated device.
class Machine {
 public:
  ~Machine() {
    const std::string misuses = nccl_.misuses();
    if (!misuses.empty()) fmt::print(stderr, "misuses of NCCL: {}\n", misuses);
    if (!misuses.empty() || testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed()) std::_Exit(70);
  }
  FakeNccl& nccl() { return nccl_; }

 private:
  FakeNccl nccl_{make_process_worlds(std::getenv(kVariable))};
};

Machine& machine() {
  static Machine machine;
  return machine;
}

}  // namespace

DeviceApi& device_api() __asm__("__wrap__ZN10sparsecast15cuda_device_apiEv");
DeviceApi& device_api() { return machine().nccl().device(); }

const NcclLibrary& library() __asm__("__wrap__ZN10sparsecast12process_ncclEv");
const NcclLibrary& library() {
  static const NcclLibrary found = [] {
    NcclLibrary fake;
    fake.functions = machine().nccl().functions;
    fake.info.version = fake.functions.version;
    fake.info.path = "fake";
    return fake;
  }();
  return found;
}

DeviceSurvey survey() __asm__("__wrap__ZN10sparsecast14survey_devicesEv");
DeviceSurvey survey() {
  const char* const devices = std::getenv("SPARSECAST_EMULATED_DEVICES");
  DeviceSurvey survey;
  for (int device = 0; device < (devices != nullptr ? std::atoi(devices) : 1); ++device) {
    survey.devices.push_back({device, "emulated device", device_api().uuid(device), std::uint64_t{1} << 30, 9, 0});
  }
  return survey;
}

}  // namespace sparsecast::test
