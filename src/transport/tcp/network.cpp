// SPDX-License-Identifier: Apache-2.0

// Chooses the network interface of a group. The choice is always reported, because groups often fail to form on
// multi-homed machines, container bridges and loopback.

#include "sparsecast/tcp_transport.hpp"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "transport/tcp/socket.hpp"

namespace sparsecast {
namespace {

bool looks_like_a_bridge(const std::string& name) {
  constexpr const char* kPrefixes[] = {"docker", "veth", "virbr", "cni", "br-", "flannel", "cali", "podman"};
  return std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [&](const char* prefix) { return name.rfind(prefix, 0) == 0; });
}

long link_megabits(const std::string& name) {
  long speed = -1;
  std::ifstream("/sys/class/net/" + name + "/speed") >> speed;
  return speed > 0 ? speed : -1;
}

/// Returns the address that the kernel would send from, or an empty string when there is no route. Sends nothing.
std::string source_address_towards(const std::string& peer_host) {
  constexpr std::uint16_t kDiscard = 9;
  std::string why;
  for (const SocketAddress& peer : resolve(peer_host, kDiscard, std::chrono::steady_clock::now())) {
    Socket socket(::socket(peer.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (socket && connect(socket.descriptor(), peer.data(), peer.length) == 0) return socket.local().host();
  }
  return {};
}

[[noreturn]] void refuse(const std::vector<NetworkInterface>& interfaces, const std::string& wanted) {
  std::string list;
  for (const NetworkInterface& interface : interfaces) {
    list += (list.empty() ? "" : ", ") + interface.name + " " + interface.address;
  }
  throw Error(ErrorCode::kUsage, fmt::format("no interface or address '{}' here; there are: {}", wanted, list));
}

}  // namespace

std::vector<NetworkInterface> network_interfaces() {
  std::vector<NetworkInterface> interfaces;
  ifaddrs* entries = nullptr;
  if (getifaddrs(&entries) != 0) return interfaces;
  for (const ifaddrs* entry = entries; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    SocketAddress address;
    address.length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&address.storage, entry->ifa_addr, address.length);
    NetworkInterface interface;
    interface.name = entry->ifa_name;
    interface.address = address.host();
    interface.ipv6 = family == AF_INET6;
    interface.up = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0;
    interface.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    interface.link_local =
        interface.ipv6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr);
    interface.bridge = looks_like_a_bridge(interface.name);
    interface.megabits = link_megabits(interface.name);
    interfaces.push_back(std::move(interface));
  }
  freeifaddrs(entries);
  return interfaces;
}

InterfaceChoice choose_interface(const std::vector<NetworkInterface>& interfaces, const std::string& wanted,
                                 const std::string& peer_host) {
  if (!wanted.empty()) {
    // An interface may have several addresses. Prefers the global IPv4 address, as NCCL does.
    const NetworkInterface* best = nullptr;
    for (const NetworkInterface& interface : interfaces) {
      if (interface.address == wanted) return {interface, "its address was asked for"};
      if (interface.name != wanted) continue;
      if (best == nullptr || (best->ipv6 && !interface.ipv6) || (best->link_local && !interface.link_local)) {
        best = &interface;
      }
    }
    if (best == nullptr) refuse(interfaces, wanted);
    return {*best, "it was asked for by name"};
  }
  if (!peer_host.empty()) {
    const std::string source = source_address_towards(peer_host);
    for (const NetworkInterface& interface : interfaces) {
      if (interface.address == source) return {interface, fmt::format("the route to {} leaves through it", peer_host)};
    }
  }
  for (const NetworkInterface& interface : interfaces) {
    if (interface.up && !interface.loopback && !interface.bridge && !interface.link_local) {
      return {interface, "the first that is up and neither loopback nor a container's bridge"};
    }
  }
  for (const NetworkInterface& interface : interfaces) {
    if (interface.loopback) return {interface, "only loopback is up: one machine only"};
  }
  throw Error(ErrorCode::kUsage, "no network interface is up on this machine");
}

std::string describe(const NetworkInterface& interface) {
  std::string text = interface.name + " " + interface.address;
  if (interface.megabits > 0) text += fmt::format(" ({} Mbit/s)", interface.megabits);
  return text;
}

std::vector<std::string> fabric_devices(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace sparsecast
