// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sparsecast/control_channel.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/transport.hpp"

namespace sparsecast {

/// One address of one network interface of this machine.
struct NetworkInterface {
  std::string name;     ///< Name, such as "eth0".
  std::string address;  ///< Address, such as "10.0.0.7" or "fe80::1%eth0".
  bool ipv6 = false;
  bool up = false;
  bool loopback = false;
  bool link_local = false;  ///< Whether the address is IPv6 link-local, so that it is usable only on one link.
  /// Whether the name looks like a container's bridge or a virtual pair (docker, veth, virbr, cni, br-).
  bool bridge = false;
  long megabits = -1;  ///< Speed of the link in Mbit/s; -1 when the kernel does not say.
};

/// Returns all interfaces with an address, in the kernel's order.
SPARSECAST_API std::vector<NetworkInterface> network_interfaces();

struct InterfaceChoice {
  NetworkInterface interface;
  std::string reason;  ///< Why this interface was chosen: "the route to 10.0.0.1 leaves through it".
};

/// Returns the interface to use. `wanted` is the name or address of an interface. When it is empty, the choice is the
/// interface through which the kernel reaches `peer_host` (numeric) or, when that is empty as well, the first that is
/// up and neither loopback nor a bridge. When `wanted` does not exist, throws Error{kUsage} that lists the existing
/// interfaces.
SPARSECAST_API InterfaceChoice choose_interface(const std::vector<NetworkInterface>& interfaces,
                                                const std::string& wanted, const std::string& peer_host);

/// Returns the interface as one line: "eth0 10.0.0.7 (10000 Mbit/s)".
SPARSECAST_API std::string describe(const NetworkInterface& interface);

/// Returns the names of the InfiniBand and RoCE devices under `folder`, which NCCL's own network transport looks for.
SPARSECAST_API std::vector<std::string> fabric_devices(const std::string& folder = "/sys/class/infiniband");

/// Returns true when this build supports meeting over TCP (it needs libsodium).
SPARSECAST_API bool rendezvous_available() noexcept;

class CancellationToken;

/// Lets another thread end meetings (Rendezvous::meet), for a caller that learns meanwhile that a rank will not come.
/// RendezvousOptions::cancellation gives the object to a meeting. One object serves any number of meetings, one after
/// another or at once.
class SPARSECAST_API MeetingCancellation {
 public:
  /// Throws Error{kIo} when no file descriptor is left.
  MeetingCancellation();
  ~MeetingCancellation();
  MeetingCancellation(const MeetingCancellation&) = delete;
  MeetingCancellation& operator=(const MeetingCancellation&) = delete;

  /// Makes every meet() with this object throw Error{kPeerFailed} with `reason`: calls in progress at once, later calls
  /// as they start. Rank 0 tells the ranks that have connected, which fail with the same reason. The first reason
  /// stands. A group that is complete stays whole. Any thread may call it at any time.
  void cancel(const std::string& reason) noexcept;
  /// Returns the token that a waiting meet() checks; for internal use.
  const CancellationToken& token() const noexcept { return *token_; }

 private:
  friend class Rendezvous;
  std::unique_ptr<CancellationToken> token_;
};

struct RendezvousOptions {
  std::string host = "127.0.0.1";  ///< Host of rank 0: a name, or an IPv4 or IPv6 address, also in brackets.
  std::uint16_t port = 0;
  int rank = 0;
  int size = 1;
  /// Secret of the group: the same on every rank, at least 16 characters, for example from `openssl rand -hex 32`. It
  /// is never sent.
  std::string secret;
  /// Number that distinguishes groups that meet at the same address one after another: a rank left over from an earlier
  /// group is rejected.
  std::uint32_t generation = 0;
  /// Interface, by name or address, on which rank 0 listens, and from which other ranks connect. Empty: rank 0 listens
  /// on the interface that has the address `host`, and the system chooses for other ranks.
  std::string interface;
  /// TCP congestion control of this rank's sockets, such as "bbr"; a sender's counts. Empty: SPARSECAST_CONGESTION in
  /// the environment, else the system's default. Parts of the group (split()) have the same.
  std::string congestion;
  std::chrono::milliseconds timeout{60000};
  /// How long a rank other than 0 tries to connect to rank 0 and to prove the secret, at most `timeout`; 0: as long as
  /// `timeout`. For ranks that must not wait for a rank 0 that has died before it listened.
  std::chrono::milliseconds reach_timeout{0};
  std::uint64_t max_blob_bytes = std::uint64_t{1}
                                 << 20;  ///< Maximum bytes of one rank in all_gather, and of a broadcast.
  /// Object by which another thread can end the meeting; may be null.
  std::shared_ptr<MeetingCancellation> cancellation;
};

/// Parses "host:port" or "[2001:db8::1]:port" into `host` and `port`. Throws Error{kUsage} for any other text.
SPARSECAST_API void parse_endpoint(const std::string& text, std::string& host, std::uint16_t& port);

/// Rank 0's open port, for callers that let the system choose one (port 0) and tell it to the other ranks.
class SPARSECAST_API RendezvousListener {
 public:
  /// Listens on the interface of `options`, or without one on the address that its host resolves to; never on all
  /// interfaces.
  explicit RendezvousListener(const RendezvousOptions& options);
  ~RendezvousListener();
  RendezvousListener(const RendezvousListener&) = delete;
  RendezvousListener& operator=(const RendezvousListener&) = delete;

  const std::string& host() const noexcept;  ///< Returns the address that the port is bound to.
  std::uint16_t port() const noexcept;

 private:
  friend class Rendezvous;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Everything that a rank needs to join a group, in the form of NCCL's unique id: 128 bytes that the application copies
/// to every rank and keeps confidential. Anyone who holds the id can join the group in the place of a rank, until the
/// group is complete. It names rank 0's address and port, and holds a random 32-byte secret and a generation.
struct UniqueId {
  std::array<std::byte, 128> bytes{};
  friend bool operator==(const UniqueId&, const UniqueId&) = default;
};

struct UniqueIdOptions {
  /// Name or address of the interface to listen on, which the other ranks must reach; empty: the first interface that
  /// is up and neither loopback nor a bridge, and loopback on a machine without any.
  std::string interface;
  std::uint16_t port = 0;  ///< 0: the system chooses.
  std::uint32_t generation = 0;
};

/// Returns a new id, made in the process that will be rank 0. Opens a port, which stays open until rank 0 calls
/// Rendezvous::meet with the id, or forget_unique_id(). Throws Error{kUsage | kIo | kUnsupported}.
SPARSECAST_API UniqueId make_unique_id(const UniqueIdOptions& options = {});
/// Closes the port of an id that will not be used. Returns true when the port was closed, and false when this process
/// has no port for the id.
SPARSECAST_API bool forget_unique_id(const UniqueId& id) noexcept;

/// Control channel of a group whose ranks have all proved that they know the secret. Rank 0 is the hub of a star. After
/// the handshake all traffic is encrypted and authenticated, with one key for each direction.
class SPARSECAST_API Rendezvous final : public ControlChannel {
 public:
  /// Forms the group. Returns on every rank when all `size` ranks have connected, or throws by the deadline:
  ///   kPeerFailed       options.cancellation was cancelled; the reason is the message
  ///   kTimeout          ranks are missing (named), or the host is silent or not to be reached; the sentence lists
  ///                     connections that were turned away, with their addresses and why
  ///   kUnauthenticated  the other end does not know the secret
  ///   kGroupMismatch    two ranks of one number, another size, another generation
  ///   kUnsupported      another protocol version
  ///   kCorrupt          something else answers at that port
  ///   kIo, kUsage       the port is taken, no such interface, the host is no address of this machine, no such
  ///                     congestion control (the sentence lists those that the kernel has)
  static std::shared_ptr<Rendezvous> meet(const RendezvousOptions& options);
  /// Forms the group on rank 0 with a port that is open already. The listener can be used again afterwards.
  static std::shared_ptr<Rendezvous> meet(const RendezvousOptions& options, RendezvousListener& listener);
  /// Forms the group with an id that make_unique_id() made in the process of rank 0. An id can be used once, whether
  /// the call succeeds or fails. Throws Error{kCorrupt} for an invalid id, and Error{kUsage} on a rank 0 that did not
  /// make it.
  static std::shared_ptr<Rendezvous> meet(const UniqueId& id, int rank, int size,
                                          std::chrono::milliseconds timeout = std::chrono::seconds(60));

  ~Rendezvous() override;
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  int rank() const noexcept override;
  int size() const noexcept override;
  std::uint64_t max_blob_bytes() const noexcept override;
  std::vector<Bytes> all_gather(std::span<const std::byte> own, Deadline deadline) override;
  Bytes reduce(std::span<const std::byte> own, const Combine& combine, Deadline deadline) override;
  Bytes broadcast(std::span<const std::byte> own, Deadline deadline) override;
  int agree(int status, int coordinator, Deadline deadline) override;
  std::shared_ptr<ControlChannel> split(int color, int key, Deadline deadline) override;
  void abort(const std::string& reason) noexcept override;
  std::optional<std::string> aborted() noexcept override;

  /// Returns a description of this rank: "rank 1 of 4 at 10.0.0.7:51344, hub 10.0.0.1:29400".
  std::string describe() const;
  /// Returns, on rank 0, the last few connections that were rejected while the group met, each with address and reason.
  const std::vector<std::string>& turned_away() const noexcept;

 private:
  struct Impl;
  explicit Rendezvous(std::shared_ptr<Impl> impl);
  /// State of the group, owned; channels made by split() refer to it while it exists.
  std::shared_ptr<Impl> impl_;
};

/// Limits of what a receiver accepts. It checks them before it allocates memory.
struct TcpTransportOptions {
  std::uint64_t max_records = std::uint64_t{1} << 22;
  std::uint64_t max_bytes = std::uint64_t{1} << 40;  ///< Maximum bytes of all records of one broadcast.
};

/// Makes a channel that sends records over a control channel (a Rendezvous over TCP, or any other), which it owns from
/// now on. The channel is meant for tests, small groups, and machines with neither MPI nor NCCL. It is a star: rank 0
/// sends every byte to each other rank in turn, so that a broadcast in a group of n ranks sends its bytes n - 1 times
/// over rank 0's link. A source other than rank 0 first sends to rank 0, which then sends to all ranks, including the
/// source. Records are sent in pieces of at most control->max_blob_bytes(). Throws Error{kUsage} for a null channel.
SPARSECAST_API std::unique_ptr<Transport> make_tcp_transport(std::shared_ptr<ControlChannel> control,
                                                             const TcpTransportOptions& options = {});

}  // namespace sparsecast
