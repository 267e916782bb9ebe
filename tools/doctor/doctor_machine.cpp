// SPDX-License-Identifier: Apache-2.0

// Checks of this machine alone.

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

#include "sparsecast/nccl_transport.hpp"
#include "sparsecast/tcp_transport.hpp"
#include "sparsecast/version.hpp"
#include "tools/common/report.hpp"
#include "tools/doctor/doctor.hpp"
#include "transport/nccl/formation.hpp"

#ifdef SPARSECAST_HAVE_MPI
#include <mpi.h>
#endif

namespace sparsecast::tools {
namespace {

std::string file_of(const void* symbol) {
  Dl_info found{};
  return dladdr(symbol, &found) != 0 && found.dli_fname != nullptr ? found.dli_fname : "?";
}

std::string cuda_version_text(int version) { return fmt::format("{}.{}", version / 1000, version / 10 % 100); }

Check check_sparsecast() {
  return {"sparsecast", CheckResult::kGood,
          fmt::format("{} in {}; rendezvous {}, NCCL transport {}", version_string(),
                      file_of(reinterpret_cast<const void*>(&check_sparsecast)), rendezvous_available() ? "yes" : "no",
                      nccl_available() ? "yes" : "no"),
          rendezvous_available() ? "" : "build with libsodium to meet over TCP"};
}

Check check_nccl(MachineFacts& facts) {
  if (!nccl_available()) {
    return {"nccl", CheckResult::kNote, "this build has no NCCL transport",
            "build where nccl.h is (SPARSECAST_NCCL=ON)"};
  }
  try {
    const NcclLibraryInfo info = nccl_library();
    facts.nccl_version = info.version;
    std::string text = fmt::format("{} from {} ({})", nccl_version_text(info.version), info.path, info.chosen_because);
    if (!info.absent.empty()) text += fmt::format("; without {}", fmt::join(info.absent, ", "));
    return {"nccl", CheckResult::kGood, text, ""};
  } catch (const Error& error) {
    // NCCL is needed only where there are devices.
    return {"nccl", facts.survey.devices.empty() ? CheckResult::kNote : CheckResult::kFailed, error.what(), ""};
  }
}

Check check_cuda(const DeviceSurvey& survey) {
  const int runtime = survey.runtime_version;
  const int driver = survey.driver_version;
  if (runtime == 0) return {"cuda", CheckResult::kNote, survey.why_none, "build with a CUDA toolkit for devices"};
  std::string text = fmt::format("runtime {} (linked into sparsecast)", cuda_version_text(runtime));
  if (driver == 0)
    return {"cuda", CheckResult::kNote, text + ", no driver", "install the NVIDIA driver if this machine has a GPU"};
  text += fmt::format(", driver for CUDA {}", cuda_version_text(driver));
  if (driver / 1000 < runtime / 1000) {
    return {"cuda", CheckResult::kFailed, text, "update the driver, or build with an older toolkit"};
  }
  return {"cuda", CheckResult::kGood, text, ""};
}

Check check_mpi() {
#ifdef SPARSECAST_HAVE_MPI
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(version, &length);
  std::string text(version);
  text = text.substr(0, text.find_first_of(",\n"));
  return {"mpi", CheckResult::kGood, text + " from " + file_of(reinterpret_cast<const void*>(&MPI_Get_library_version)),
          ""};
#else
  return {"mpi", CheckResult::kNote, "this build has no MPI transport", "build with MPI for CPU clusters"};
#endif
}

int local_device(const DoctorFlags& flags) {
  if (flags.device >= 0) return flags.device;
  for (const char* name : {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"}) {
    if (const char* const value = std::getenv(name)) return std::atoi(value);
  }
  return 0;
}

std::vector<Check> check_devices(const DoctorFlags& flags, MachineFacts& facts) {
  const auto& devices = facts.survey.devices;
  if (devices.empty()) {
    return {{"devices", CheckResult::kNote, fmt::format("none: {}", facts.survey.why_none),
             "nothing, if this machine has no GPU: MPI and delta files work without"}};
  }
  std::vector<Check> checks;
  for (const DeviceInfo& device : devices) {
    checks.push_back({"devices", CheckResult::kGood,
                      fmt::format("{}: {}, {}, sm_{}{}, {}", device.ordinal, device.name,
                                  human_bytes(device.memory_bytes), device.major, device.minor, device.uuid),
                      ""});
  }
  facts.device = local_device(flags);
  if (facts.device >= static_cast<int>(devices.size())) {
    checks.push_back({"devices", CheckResult::kFailed,
                      fmt::format("this rank would use device {}, and there are {}", facts.device, devices.size()),
                      "start fewer ranks on this machine, or look at CUDA_VISIBLE_DEVICES"});
  }
  return checks;
}

std::vector<Check> check_interfaces(const DoctorFlags& flags) {
  const auto interfaces = network_interfaces();
  std::vector<Check> checks;
  for (const NetworkInterface& interface : interfaces) {
    if (interface.link_local) continue;
    checks.push_back({"interfaces", CheckResult::kNote,
                      describe(interface) + (interface.up ? "" : ", down") + (interface.bridge ? ", a bridge" : ""),
                      ""});
  }
  try {
    std::string host;
    std::uint16_t port = 0;
    if (!flags.rendezvous.empty()) parse_endpoint(flags.rendezvous, host, port);
    const bool listens = flags.rank == 0;
    const InterfaceChoice choice = choose_interface(interfaces, flags.interface, listens ? "" : host);
    const bool loopback = choice.interface.loopback && flags.rendezvous.empty();
    checks.push_back({"interfaces", CheckResult::kGood,
                      fmt::format("{} would be used: {}", describe(choice.interface), choice.reason),
                      loopback ? "bring up a network interface to leave this machine" : ""});
  } catch (const Error& error) {
    checks.push_back({"interfaces", CheckResult::kFailed, error.what(), "choose one with --interface"});
  }
  return checks;
}

Check check_fabric(const DoctorFlags& flags) {
  const auto devices = fabric_devices();
  const int links = active_nvlinks();
  if (!devices.empty() || links > 0) {
    return {"fabric", CheckResult::kGood,
            fmt::format("InfiniBand, RoCE or EFA devices: {}; active NVLinks: {}",
                        devices.empty() ? "none" : fmt::format("{}", fmt::join(devices, ", ")), links),
            ""};
  }
  return {"fabric", flags.require_fabric ? CheckResult::kFailed : CheckResult::kNote,
          "none: no device under /sys/class/infiniband and no NVLink; NCCL would use TCP sockets",
          flags.require_fabric ? "load the fabric's driver, and pass /dev/infiniband into the container" : ""};
}

std::vector<Check> check_environment() {
  std::vector<Check> checks;
  for (const std::string& entry : relevant_environment()) {
    Check check{"environment", CheckResult::kNote, entry, ""};
    if (entry.rfind("NCCL_ALGO=", 0) == 0 || entry.rfind("NCCL_PROTO=", 0) == 0) {
      check.cure = "unset it: from 2.31 on a list that does not name broadcast leaves broadcast without an algorithm";
    }
    if (entry.rfind("CUDA_LAUNCH_BLOCKING=1", 0) == 0) check.cure = "unset it: collectives may deadlock";
    checks.push_back(check);
  }
  if (checks.empty()) checks.push_back({"environment", CheckResult::kGood, "no variable of NCCL or CUDA is set", ""});
  return checks;
}

}  // namespace

std::vector<Check> check_machine(const DoctorFlags& flags, MachineFacts& facts) {
  facts.survey = survey_devices();
  std::vector<Check> checks = {check_sparsecast(), check_nccl(facts), check_cuda(facts.survey), check_mpi()};
  const auto add = [&](const std::vector<Check>& more) { checks.insert(checks.end(), more.begin(), more.end()); };
  add(check_devices(flags, facts));
  add(check_interfaces(flags));
  add({check_fabric(flags)});
  add(check_environment());
  return checks;
}

}  // namespace sparsecast::tools
