// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/unique_id.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>

#include "sparsecast/digest.hpp"
#include "sparsecast/tcp_transport.hpp"

namespace sparsecast {
namespace {

constexpr char kMagic[9] = "sparsecU";
constexpr std::size_t kHostBytes = 64;
/// Bound on open ids. Each holds a port, so a program with more has a leak.
constexpr std::size_t kMostOpen = 256;

struct UniqueIdBytes {
  char magic[8] = {};
  std::uint32_t generation = 0;
  std::uint16_t port = 0;
  std::uint16_t zero = 0;
  Nonce secret{};
  char host[kHostBytes] = {};
  std::uint64_t reserved = 0;
  std::uint64_t checksum = 0;
};
static_assert(sizeof(UniqueIdBytes) == sizeof(UniqueId) && std::is_trivially_copyable_v<UniqueId>);

std::uint64_t checksum_of(const UniqueIdBytes& layout) {
  return xxh3_64(std::as_bytes(std::span(&layout, 1)).first(offsetof(UniqueIdBytes, checksum)));
}

/// Ports that this process has opened for ids and that no group has used yet.
class OpenIds {
 public:
  static OpenIds& of_process() {
    static OpenIds ids;
    return ids;
  }

  void add(const UniqueId& id, std::unique_ptr<RendezvousListener> listener) {
    const std::lock_guard lock(mutex_);
    listeners_.emplace(id.bytes, std::move(listener));
  }
  std::size_t count() {
    const std::lock_guard lock(mutex_);
    return listeners_.size();
  }
  std::unique_ptr<RendezvousListener> take(const UniqueId& id) {
    const std::lock_guard lock(mutex_);
    auto node = listeners_.extract(id.bytes);
    return node.empty() ? nullptr : std::move(node.mapped());
  }

 private:
  std::mutex mutex_;
  std::map<std::array<std::byte, sizeof(UniqueId)>, std::unique_ptr<RendezvousListener>> listeners_;
};

}  // namespace

UniqueId pack_unique_id(const UniqueIdContent& content) {
  UniqueIdBytes layout;
  if (content.host.empty() || content.host.size() >= kHostBytes) {
    throw Error(ErrorCode::kUsage, fmt::format("the address '{}' does not fit into a unique id", content.host));
  }
  std::memcpy(layout.magic, kMagic, sizeof(layout.magic));
  layout.generation = content.generation;
  layout.port = content.port;
  layout.secret = content.secret;
  content.host.copy(layout.host, kHostBytes - 1);
  layout.checksum = checksum_of(layout);
  UniqueId id;
  std::memcpy(id.bytes.data(), &layout, sizeof(layout));
  return id;
}

UniqueIdContent parse_unique_id(const UniqueId& id) {
  UniqueIdBytes layout;
  std::memcpy(&layout, id.bytes.data(), sizeof(layout));
  if (std::memcmp(layout.magic, kMagic, sizeof(layout.magic)) != 0 || layout.checksum != checksum_of(layout)) {
    throw Error(ErrorCode::kCorrupt, "these bytes are no unique id, or were damaged on the way");
  }
  const std::string_view field(layout.host, kHostBytes);
  const std::string host(field.substr(0, field.find('\0')));
  const bool padded = field.substr(host.size()).find_first_not_of('\0') == std::string_view::npos;
  const bool printable = std::all_of(host.begin(), host.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (host.empty() || host.size() == kHostBytes || !padded || !printable || layout.port == 0 || layout.zero != 0 ||
      layout.reserved != 0) {
    throw Error(ErrorCode::kCorrupt, "the unique id names no address and port");
  }
  return {layout.generation, layout.port, layout.secret, host};
}

std::string secret_text(const Nonce& secret) { return {reinterpret_cast<const char*>(secret.data()), secret.size()}; }

UniqueId make_unique_id(const UniqueIdOptions& options) {
  if (!rendezvous_available()) key_from_secret({});  // Throws an error that names what this build lacks.
  OpenIds& open = OpenIds::of_process();
  if (open.count() >= kMostOpen) {
    throw Error(ErrorCode::kUsage,
                fmt::format("{} unique ids are open in this process, on which no group has met", kMostOpen));
  }
  RendezvousOptions listening;
  listening.port = options.port;
  listening.interface = options.interface;
  if (listening.interface.empty()) {
    listening.interface = choose_interface(network_interfaces(), "", "").interface.address;
  }
  auto listener = std::make_unique<RendezvousListener>(listening);
  const UniqueId id = pack_unique_id({options.generation, listener->port(), fresh_nonce(), listener->host()});
  open.add(id, std::move(listener));
  return id;
}

bool forget_unique_id(const UniqueId& id) noexcept {
  try {
    return OpenIds::of_process().take(id) != nullptr;
  } catch (...) {
    return false;
  }
}

std::shared_ptr<Rendezvous> Rendezvous::meet(const UniqueId& id, int rank, int size,
                                             std::chrono::milliseconds timeout) {
  const UniqueIdContent content = parse_unique_id(id);
  RendezvousOptions options;
  options.host = content.host;
  options.port = content.port;
  options.generation = content.generation;
  options.secret = secret_text(content.secret);
  options.rank = rank;
  options.size = size;
  options.timeout = timeout;
  if (rank != 0) return meet(options);
  const std::unique_ptr<RendezvousListener> listener = OpenIds::of_process().take(id);
  if (!listener) {
    throw Error(ErrorCode::kUsage,
                "rank 0 is the process that made the unique id, and a group meets on an id once: this process has not "
                "made it, or has met on it already",
                "rendezvous");
  }
  return meet(options, *listener);
}

}  // namespace sparsecast
