// SPDX-License-Identifier: Apache-2.0
#include "sparsecast_perf/machine.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "sparsecast/device.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/nccl_transport.hpp"

namespace sparsecast::perf {
namespace {

using Json = nlohmann::json;
using std::chrono::steady_clock;

std::string to_text(const Machine& machine) {
  Json devices = Json::array();
  for (const DeviceInfo& device : machine.survey.devices) {
    devices.push_back({device.ordinal, device.name, device.uuid, device.memory_bytes, device.major, device.minor});
  }
  const Json all = {machine.device_backend,
                    devices,
                    machine.survey.why_none,
                    machine.survey.runtime_version,
                    machine.survey.driver_version,
                    machine.nccl_version,
                    machine.why_no_nccl};
  return all.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Machine from_text(const std::string& text) {
  const Json all = Json::parse(text);
  Machine machine;
  all.at(0).get_to(machine.device_backend);
  for (const Json& device : all.at(1)) {
    machine.survey.devices.push_back(
        {device.at(0), device.at(1), device.at(2), device.at(3), device.at(4), device.at(5)});
  }
  all.at(2).get_to(machine.survey.why_none);
  all.at(3).get_to(machine.survey.runtime_version);
  all.at(4).get_to(machine.survey.driver_version);
  all.at(5).get_to(machine.nccl_version);
  all.at(6).get_to(machine.why_no_nccl);
  return machine;
}

[[noreturn]] void answer(int descriptor) {
  std::string text;
  try {
    text = to_text(survey_machine());
  } catch (const std::exception&) {
    _exit(1);
  }
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t written = ::write(descriptor, text.data() + at, text.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) _exit(1);
    at += static_cast<std::size_t>(written);
  }
  // No destructors: what the parent's libraries registered is the parent's to run.
  _exit(0);
}

/// All that comes until the other end closes; as much as there is by the deadline otherwise.
std::string read_all(int descriptor, steady_clock::time_point deadline) {
  std::string text;
  char piece[4096];
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock::now()).count();
    pollfd entry{descriptor, POLLIN, 0};
    const int ready = left > 0 ? ::poll(&entry, 1, static_cast<int>(left)) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return text;
    const ssize_t size = ::read(descriptor, piece, sizeof(piece));
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return text;
    text.append(piece, static_cast<std::size_t>(size));
  }
}

}  // namespace

Machine survey_machine() {
  Machine machine;
  machine.device_backend = device_backend_available();
  machine.survey = survey_devices();
  if (!nccl_available()) {
    machine.why_no_nccl = "this build has no NCCL transport";
    return machine;
  }
  try {
    machine.nccl_version = nccl_library().version;
  } catch (const Error& error) {
    machine.why_no_nccl = error.what();
  }
  return machine;
}

Machine probe_machine(std::chrono::milliseconds timeout) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(ErrorCode::kIo, "no pipe can be opened");
  const pid_t child = ::fork();
  if (child == 0) answer(ends[1]);
  ::close(ends[1]);
  std::string text;
  if (child > 0) {
    text = read_all(ends[0], steady_clock::now() + timeout);
    ::kill(child, SIGKILL);  // It has answered, or has had its time.
    ::waitpid(child, nullptr, 0);
  }
  ::close(ends[0]);
  try {
    return from_text(text);
  } catch (const Json::exception&) {
    throw Error(ErrorCode::kDevice, "asking this machine for its devices failed; nvidia-smi may know why");
  }
}

}  // namespace sparsecast::perf
