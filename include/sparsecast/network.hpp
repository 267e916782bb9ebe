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
  bool link_local = false;  ///< IPv6 link-local: of use only on one link.
  bool bridge = false;      ///< Looks like a container's bridge or a virtual pair (docker, veth, virbr, cni, br-).
  long megabits = -1;       ///< Speed of the link; -1 when the kernel does not say.
};

/// All interfaces with an address, in the kernel's order.
SPARSECAST_API std::vector<NetworkInterface> network_interfaces();

struct InterfaceChoice {
  NetworkInterface interface;
  std::string reason;  ///< "the route to 10.0.0.1 leaves through it"
};

/// The interface to use. `wanted`: a name or an address; when empty the one through which the kernel reaches
/// `peer_host` (numeric), and when that is empty as well, the first that is up and neither loopback nor a bridge.
/// Throws Error{kUsage} that lists what there is when `wanted` is not there.
SPARSECAST_API InterfaceChoice choose_interface(const std::vector<NetworkInterface>& interfaces,
                                                const std::string& wanted, const std::string& peer_host);

/// One line: "eth0 10.0.0.7 (10000 Mbit/s)".
SPARSECAST_API std::string describe(const NetworkInterface& interface);

/// InfiniBand and RoCE devices under `folder`: what NCCL's own network transport looks for.
SPARSECAST_API std::vector<std::string> fabric_devices(const std::string& folder = "/sys/class/infiniband");

}  // namespace sparsecast
