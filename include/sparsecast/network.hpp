// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sparsecast/export.hpp"

namespace sparsecast {

/// One address of one network interface of this machine.
struct NetworkInterface {
  std::string name;     ///< "eth0"
  std::string address;  ///< "10.0.0.7", "fe80::1%eth0"
  bool ipv6 = false;
  bool up = false;
  bool loopback = false;
  bool link_local = false;  ///< IPv6 link-local: usable only on one link.
  bool bridge = false;      ///< Looks like a container's bridge or a virtual pair (docker, veth, virbr, cni, br-).
  long megabits = -1;       ///< Speed of the link; -1 when the kernel does not say.
};

/// Returns all interfaces with an address, in the kernel's order.
SPARSECAST_API std::vector<NetworkInterface> network_interfaces();

struct InterfaceChoice {
  NetworkInterface interface;
  std::string reason;  ///< "the route to 10.0.0.1 leaves through it"
};

/// Returns the interface to use. `wanted` is the name or address of an interface. When it is empty, the choice is the
/// interface through which the kernel reaches `peer_host` (numeric) or, when that is empty as well, the first that is
/// up and neither loopback nor a bridge. When `wanted` does not exist, throws Error{kUsage} that lists the existing
/// interfaces.
SPARSECAST_API InterfaceChoice choose_interface(const std::vector<NetworkInterface>& interfaces,
                                                const std::string& wanted, const std::string& peer_host);

/// Returns one line: "eth0 10.0.0.7 (10000 Mbit/s)".
SPARSECAST_API std::string describe(const NetworkInterface& interface);

/// Returns the InfiniBand and RoCE devices under `folder`, which NCCL's own network transport looks for.
SPARSECAST_API std::vector<std::string> fabric_devices(const std::string& folder = "/sys/class/infiniband");

}  // namespace sparsecast
