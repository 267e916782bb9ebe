// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace sparsecast::test {

/// Every kernel has this algorithm, and allows it to everyone; hardly any has it as its default.
inline const std::string kPlainCongestion = "reno";

/// Returns the number of TCP sockets of this process with this congestion control.
inline int sockets_with(std::string_view algorithm) {
  constexpr int kMostDescriptors = 4096;
  int count = 0;
  for (int descriptor = 0; descriptor < kMostDescriptors; ++descriptor) {
    char name[64] = {};
    socklen_t length = sizeof(name) - 1;
    if (getsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0 && name == algorithm) ++count;
  }
  return count;
}

/// Sets SPARSECAST_CONGESTION in the environment of this process, and removes it in the end.
class CongestionVariable {
 public:
  explicit CongestionVariable(const std::string& value) { setenv("SPARSECAST_CONGESTION", value.c_str(), 1); }
  ~CongestionVariable() { unsetenv("SPARSECAST_CONGESTION"); }
  CongestionVariable(const CongestionVariable&) = delete;
  CongestionVariable& operator=(const CongestionVariable&) = delete;
};

}  // namespace sparsecast::test
