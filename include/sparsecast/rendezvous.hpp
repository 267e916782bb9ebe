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

namespace sparsecast {

/// True when this build can meet over TCP (it needs libsodium).
SPARSECAST_API bool rendezvous_available() noexcept;

struct RendezvousOptions {
  std::string host = "127.0.0.1";  ///< Of rank 0: a name, an IPv4 or an IPv6 address (with or without brackets).
  std::uint16_t port = 0;
  int rank = 0;
  int size = 1;
  /// The same on every rank, at least 16 characters, for example of `openssl rand -hex 32`. It is never sent.
  std::string secret;
  /// Tells groups apart that meet at the same place one after another: a rank left over from an earlier one is refused.
  std::uint32_t generation = 0;
  /// Rank 0: the interface (name or address) to listen on; empty: the one that has `host`. Others: to connect from.
  std::string interface;
  std::chrono::milliseconds timeout{60000};
  std::uint64_t max_blob_bytes = std::uint64_t{1} << 20;  ///< Of one rank in all_gather, and of broadcast.
};

/// "host:port", "[2001:db8::1]:port". Throws Error{kUsage}.
SPARSECAST_API void parse_endpoint(const std::string& text, std::string& host, std::uint16_t& port);

/// Rank 0's open port, for callers that let the system choose one (port 0) and tell it to the other ranks.
class SPARSECAST_API RendezvousListener {
 public:
  /// Listens on the interface of `options`, else on the address that its host resolves to: never on all of them.
  explicit RendezvousListener(const RendezvousOptions& options);
  ~RendezvousListener();
  RendezvousListener(const RendezvousListener&) = delete;
  RendezvousListener& operator=(const RendezvousListener&) = delete;

  const std::string& host() const noexcept;  ///< The address it is bound to.
  std::uint16_t port() const noexcept;

 private:
  friend class Rendezvous;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// All that a rank needs to join a group, in the shape of NCCL's unique id: 128 bytes to be copied to every rank by any
/// means that keeps them confidential. Whoever holds the id can join the group in the place of a rank, until the group
/// is complete. It names rank 0's address and port, and holds a random 32-byte secret and a generation.
struct UniqueId {
  std::array<std::byte, 128> bytes{};
  friend bool operator==(const UniqueId&, const UniqueId&) = default;
};

struct UniqueIdOptions {
  /// Name or address of the interface to listen on, which the other ranks must reach; empty: the first that is up and
  /// neither loopback nor a bridge, and loopback on a machine without any.
  std::string interface;
  std::uint16_t port = 0;  ///< 0: the system chooses.
  std::uint32_t generation = 0;
};

/// On the process that will be rank 0: opens a port, which stays open until rank 0 meets on the id or it is forgotten.
/// Throws Error{kUsage | kIo | kUnsupported}.
SPARSECAST_API UniqueId make_unique_id(const UniqueIdOptions& options = {});
/// Closes the port of an id on which nobody will meet. False when this process has none for it.
SPARSECAST_API bool forget_unique_id(const UniqueId& id) noexcept;

/// A group that has met: N ranks that verified to each other that they know the secret. Rank 0 is the hub of a star;
/// everything after the handshake is encrypted and authenticated, each way with a key of its own.
class SPARSECAST_API Rendezvous final : public ControlChannel {
 public:
  /// Returns on every rank when all `size` of them are here, or throws by the deadline:
  ///   kTimeout          ranks are missing (named), or the host is silent or not to be reached; the sentence lists
  ///                     connections that were turned away, with their addresses and why
  ///   kUnauthenticated  the other end does not know the secret
  ///   kGroupMismatch    two ranks of one number, another size, another generation
  ///   kUnsupported      another protocol version
  ///   kCorrupt          something else answers at that port
  ///   kIo, kUsage       the port is taken, no such interface, the host is no address of this machine
  static std::shared_ptr<Rendezvous> meet(const RendezvousOptions& options);
  /// The same on rank 0 with a port that is open already. The listener can be used again afterwards.
  static std::shared_ptr<Rendezvous> meet(const RendezvousOptions& options, RendezvousListener& listener);
  /// The same with an id that make_unique_id() made in the process of rank 0. A group meets on an id once, in success
  /// or failure. Throws Error{kCorrupt} for bytes that are no id, Error{kUsage} on a rank 0 that did not make it.
  static std::shared_ptr<Rendezvous> meet(const UniqueId& id, int rank, int size,
                                          std::chrono::milliseconds timeout = std::chrono::seconds(60));

  ~Rendezvous() override;
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  int rank() const noexcept override;
  int size() const noexcept override;
  std::uint64_t max_blob_bytes() const noexcept override;
  std::vector<Bytes> all_gather(std::span<const std::byte> own, Deadline deadline) override;
  Bytes broadcast(std::span<const std::byte> own, Deadline deadline) override;
  int agree(int status, int coordinator, Deadline deadline) override;
  std::shared_ptr<ControlChannel> split(int color, int key, Deadline deadline) override;
  void abort(const std::string& reason) noexcept override;
  std::optional<std::string> aborted() noexcept override;

  /// This end: "rank 1 of 4 at 10.0.0.7:51344, hub 10.0.0.1:29400".
  std::string describe() const;
  /// Rank 0: connections that were turned away while the group met, the last few, each with address and reason.
  const std::vector<std::string>& turned_away() const noexcept;

 private:
  struct Impl;
  explicit Rendezvous(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;  ///< Its own; the parts look at it as long as it is there.
};

}  // namespace sparsecast
