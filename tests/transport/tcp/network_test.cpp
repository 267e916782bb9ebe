// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/tcp_transport.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "transport/tcp/meeting.hpp"

namespace sparsecast::test {
namespace {

using testing::HasSubstr;

NetworkInterface interface(const char* name, const char* address) {
  NetworkInterface result;
  result.name = name;
  result.address = address;
  result.up = true;
  result.loopback = result.name == "lo";
  result.bridge = result.name == "docker0";
  result.ipv6 = result.address.find(':') != std::string::npos;
  return result;
}

const std::vector<NetworkInterface> kMachine = {interface("lo", "127.0.0.1"), interface("docker0", "172.17.0.1"),
                                                interface("eth0", "10.0.0.7"), interface("ib0", "fd00::7"),
                                                interface("ib0", "10.1.0.7")};

TEST(Network, ThisMachineHasLoopback) {
  const auto all = network_interfaces();
  EXPECT_TRUE(
      std::any_of(all.begin(), all.end(), [](const auto& i) { return i.loopback && i.address == "127.0.0.1"; }));
}

TEST(Network, BridgesAndLoopbackAreNotChosenByThemselves) {
  const InterfaceChoice choice = choose_interface(kMachine, "", "");
  EXPECT_EQ(choice.interface.name, "eth0");
  EXPECT_THAT(choice.reason, HasSubstr("neither loopback"));
  EXPECT_EQ(choose_interface({kMachine[0], kMachine[1]}, "", "").interface.name, "lo");
}

TEST(Network, WhatIsAskedForByNameOrAddressIsTaken) {
  EXPECT_EQ(choose_interface(kMachine, "docker0", "").interface.address, "172.17.0.1");
  EXPECT_EQ(choose_interface(kMachine, "ib0", "").interface.address, "10.1.0.7");
  EXPECT_EQ(choose_interface(kMachine, "fd00::7", "").interface.name, "ib0");
  expect_error(ErrorCode::kUsage, [] { choose_interface(kMachine, "eth1", ""); }, {"eth1", "eth0 10.0.0.7", "docker0"});
  expect_error(ErrorCode::kUsage, [] { choose_interface({}, "", ""); }, {"no network interface"});
}

TEST(Network, TheRouteToThePeerDecides) {
  const InterfaceChoice choice = choose_interface(network_interfaces(), "", "127.0.0.1");
  EXPECT_TRUE(choice.interface.loopback);
  EXPECT_THAT(choice.reason, HasSubstr("the route to 127.0.0.1"));
}

TEST(Network, FabricDevicesAreListedByName) { EXPECT_TRUE(fabric_devices("/no/such/folder").empty()); }

TEST(Hosts, WhatCanBeNoHostIsRefusedAtOnceByEveryRank) {
  if (!rendezvous_available()) GTEST_SKIP() << "built without libsodium";
  for (const std::string host : {"", "*", "*:80", " ", " 127.0.0.1", "127.0.0.1 ", "http://127.0.0.1", "a/b", "[]",
                                 "[::1", "::1]", "[127.0.0.1]", "a,b", "h\u00f6st", "a\nb"}) {
    for (int rank = 0; rank < 2; ++rank) {
      RendezvousOptions options = meeting_options(2, std::chrono::hours(1));
      options.host = host;
      options.rank = rank;
      options.port = 1;
      expect_error(ErrorCode::kUsage, [&] { Rendezvous::meet(options); }, {"neither a host name nor an", host});
    }
  }
}

TEST(Hosts, ALoopbackAddressThatNobodyDialsIsNamed) {
  if (!rendezvous_available()) GTEST_SKIP() << "built without libsodium";
  RendezvousOptions options = meeting_options(2, std::chrono::milliseconds(200));
  options.host = "127.0.1.1";
  Meeting meeting(options);
  expect_error(ErrorCode::kTimeout, [&] { meeting.meet(0); },
               {"rank 1 of 2 did not come", fmt::format("listens at 127.0.1.1:{}", meeting.port()), "loopback"});
}

}  // namespace
}  // namespace sparsecast::test
