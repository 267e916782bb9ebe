// SPDX-License-Identifier: Apache-2.0
#include "core/congestion.hpp"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <system_error>

#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

/// Returns the kernel's list of algorithms in this file of /proc/sys/net/ipv4, "unknown" if it cannot be read.
std::string list_of(const char* file) {
  std::ifstream stream(fmt::format("/proc/sys/net/ipv4/{}", file));
  std::string line;
  return std::getline(stream, line) && !line.empty() ? line : "unknown";
}

}  // namespace

std::string congestion_control(const std::string& option) {
  std::string algorithm = option;
  const char* const variable = std::getenv("SPARSECAST_CONGESTION");
  if (algorithm.empty() && variable != nullptr) algorithm = variable;
  if (algorithm.empty()) return algorithm;
  int probe = -1;
  for (const int family : {AF_INET, AF_INET6}) {
    if (probe < 0) probe = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  }
  if (probe < 0) throw Error(ErrorCode::kIo, fmt::format("socket: {}", std::generic_category().message(errno)));
  try {
    set_congestion_control(probe, algorithm);
  } catch (...) {
    close(probe);
    throw;
  }
  close(probe);
  return algorithm;
}

void set_congestion_control(int socket, const std::string& algorithm) {
  if (algorithm.empty()) return;
  const auto length = static_cast<socklen_t>(algorithm.size());
  if (setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, algorithm.data(), length) == 0) return;
  const int code = errno;
  const std::string available = list_of("tcp_available_congestion_control");
  if (code == EPERM) {
    throw Error(ErrorCode::kUsage,
                fmt::format("the TCP congestion control '{}' is not allowed to this process, only {} (available: {}); "
                            "root allows more by net.ipv4.tcp_allowed_congestion_control",
                            algorithm, list_of("tcp_allowed_congestion_control"), available));
  }
  throw Error(ErrorCode::kUsage, fmt::format("this kernel has no TCP congestion control '{}' ({}); available: {}",
                                             algorithm, std::generic_category().message(code), available));
}

}  // namespace sparsecast
