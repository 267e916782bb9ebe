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
  std::string name;     ///< Name of the interface, such as "eth0".
  std::string address;  ///< Numeric address, such as "10.0.0.7" or "fe80::1%eth0".
  bool ipv6 = false;
  bool up = false;
  bool loopback = false;
  bool link_local = false;  ///< Whether the address is IPv6 link-local, so that it is usable only on one link.
  /// Whether the name looks like a container's bridge or a virtual pair (docker, veth, virbr, cni, br-).
  bool bridge = false;
  long megabits = -1;  ///< Speed of the link in Mbit/s; -1 when the kernel does not report it.
};

/// Returns all interfaces with an address, in the kernel's order.
SPARSECAST_API std::vector<NetworkInterface> network_interfaces();

struct InterfaceChoice {
  NetworkInterface interface;
  std::string reason;  ///< Reason why this interface was chosen, such as "the route to 10.0.0.1 leaves through it".
};

/// Returns the interface to use. `wanted` is the name or address of an interface. When `wanted` is empty, the result is
/// the interface through which the kernel reaches `peer_host` (a numeric address). When `peer_host` is empty as well,
/// or no such interface is found, it is the first interface that is up and neither loopback, nor a bridge, nor
/// link-local; if there is none, loopback. Throws Error{kUsage} when `wanted` does not exist (the message lists the
/// existing interfaces), and when no interface is up.
SPARSECAST_API InterfaceChoice choose_interface(const std::vector<NetworkInterface>& interfaces,
                                                const std::string& wanted, const std::string& peer_host);

/// Returns the interface as one line: "eth0 10.0.0.7 (10000 Mbit/s)".
SPARSECAST_API std::string describe(const NetworkInterface& interface);

/// Returns the names of this machine's InfiniBand and RoCE devices, which are the entries of `folder`, sorted. NCCL's
/// own network transport looks for these devices.
SPARSECAST_API std::vector<std::string> fabric_devices(const std::string& folder = "/sys/class/infiniband");

/// Returns true when this build supports meeting over TCP (it needs libsodium).
SPARSECAST_API bool rendezvous_available() noexcept;

class CancellationToken;

/// Lets another thread end meetings (Rendezvous::meet), for a caller that learns during a meeting that a rank will not
/// come. RendezvousOptions::cancellation connects a meeting to the object. One object serves any number of meetings,
/// one after another or at once.
class SPARSECAST_API MeetingCancellation {
 public:
  /// Makes an object that is not cancelled. Throws Error{kIo} when no file descriptor is left.
  MeetingCancellation();
  ~MeetingCancellation();
  MeetingCancellation(const MeetingCancellation&) = delete;
  MeetingCancellation& operator=(const MeetingCancellation&) = delete;

  /// Makes every meet() with this object throw Error{kPeerFailed} with `reason`: calls in progress at once, later calls
  /// as they start. Rank 0 tells the ranks that have connected, which fail with the same reason. Only the first call
  /// has an effect. A group that is already complete is not affected. Any thread may call it at any time.
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
  /// TCP congestion control of this rank's sockets, such as "bbr". It controls how fast this rank sends, not how fast
  /// it receives. Empty: SPARSECAST_CONGESTION in the environment, else the system's default. Channels that split()
  /// makes use the same.
  std::string congestion;
  std::chrono::milliseconds timeout{60000};
  /// Maximum time for which a rank other than 0 tries to connect to rank 0 and to prove the secret, at most `timeout`;
  /// 0: the same as `timeout`. For ranks that must not wait long for a rank 0 that has died before it listened.
  std::chrono::milliseconds reach_timeout{0};
  /// Maximum number of bytes that one rank may pass to all_gather, and rank 0 to broadcast.
  std::uint64_t max_blob_bytes = std::uint64_t{1} << 20;
  /// Object by which another thread can end the meeting; may be null.
  std::shared_ptr<MeetingCancellation> cancellation;
};

/// Parses "host:port" or "[2001:db8::1]:port" into `host` and `port`. Throws Error{kUsage} for any other text.
SPARSECAST_API void parse_endpoint(const std::string& text, std::string& host, std::uint16_t& port);

/// The port on which rank 0 listens, for callers that let the system choose the port (port 0) and pass its number to
/// the other ranks.
class SPARSECAST_API RendezvousListener {
 public:
  /// Listens on options.interface, or, when that is empty, on the address that options.host resolves to; never on all
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

/// Data that a rank needs to join a group, in the form of NCCL's unique id: 128 bytes that the application copies to
/// every rank and keeps confidential. Anyone who holds the id can join the group in the place of a rank, until the
/// group is complete. It names rank 0's address and port, and holds a random 32-byte secret and a generation.
struct UniqueId {
  std::array<std::byte, 128> bytes{};
  friend bool operator==(const UniqueId&, const UniqueId&) = default;
};

struct UniqueIdOptions {
  /// Name or address of the interface to listen on, which the other ranks must reach; empty: the first interface that
  /// is up and neither loopback nor a bridge, and loopback on a machine without any.
  std::string interface;
  std::uint16_t port = 0;  ///< Port to listen on; 0: the system chooses.
  std::uint32_t generation = 0;
};

/// Returns a new id; must be called in the process that will be rank 0. Opens a port, which stays open until this
/// process calls Rendezvous::meet with the id, or forget_unique_id(). Throws Error{kUsage} when there is no such
/// interface, or too many ids of this process are unused; kIo when the port cannot be opened, and kUnsupported in a
/// build without libsodium.
SPARSECAST_API UniqueId make_unique_id(const UniqueIdOptions& options = {});
/// Closes the port of an id that will not be used. Returns true when the port was closed, and false when this process
/// has no port for the id.
SPARSECAST_API bool forget_unique_id(const UniqueId& id) noexcept;

/// Control channel of a group whose ranks have all proved that they know the secret. Rank 0 is the hub of a star. After
/// the handshake all traffic is encrypted and authenticated, with one key for each direction.
class SPARSECAST_API Rendezvous final : public ControlChannel {
 public:
  /// Forms the group. Returns on every rank when all `size` ranks have connected, or throws by the deadline:
  ///   kPeerFailed       options.cancellation was cancelled; the message is its reason
  ///   kTimeout          ranks are missing (named), or the host is silent or cannot be reached; the message lists the
  ///                     connections that were rejected, with their addresses and the reasons
  ///   kUnauthenticated  the other end does not know the secret
  ///   kGroupMismatch    two ranks have the same number, or ranks disagree on the size or the generation
  ///   kUnsupported      another protocol version
  ///   kCorrupt          something else answers at that port
  ///   kIo, kUsage       the port is taken, the interface does not exist, the host is no address of this machine, or
  ///                     the kernel lacks the congestion control (the message lists those that it has)
  static std::shared_ptr<Rendezvous> meet(const RendezvousOptions& options);
  /// Forms the group on rank 0 with a port that is open already. The listener can be used again afterwards.
  static std::shared_ptr<Rendezvous> meet(const RendezvousOptions& options, RendezvousListener& listener);
  /// Forms the group with an id that make_unique_id() made in the process of rank 0. An id can be used once, whether
  /// the call succeeds or fails. Throws Error{kCorrupt} for an invalid id, and Error{kUsage} on rank 0 when this
  /// process did not make the id.
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
  /// State of the group. Channels made by split() refer to it, but do not keep it alive.
  std::shared_ptr<Impl> impl_;
};

/// Limits that a receiver checks before it allocates memory for records.
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
