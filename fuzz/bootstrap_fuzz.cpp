// SPDX-License-Identifier: Apache-2.0

// Fuzzes messages of rendezvous peers: those of a stranger to the acceptor of rank 0, those of a member in clear and
// encrypted, the parts of an all_gather, and unique ids. Every input is refused with an Error, or is unchanged after a
// round trip.

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "sparsecast/digest.hpp"
#include "transport/control/blobs.hpp"
#include "transport/tcp/handshake.hpp"
#include "transport/tcp/unique_id.hpp"

namespace {

using namespace sparsecast;
using std::chrono::steady_clock;

constexpr std::uint64_t kMostBody = 4096;

void require(bool condition) {
  if (!condition) std::abort();
}

const SecretKey& fixed_key() {
  static const SecretKey key = key_from_secret("the secret of the fuzzed group");
  return key;
}

/// Sends what goes into the socket at once and ends the stream.
void write_all(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0) break;
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
  ::shutdown(descriptor, SHUT_WR);
}

void unique_id(std::span<const std::byte> input) {
  UniqueId id;
  std::memcpy(id.bytes.data(), input.data(), std::min(input.size(), id.bytes.size()));
  const std::size_t summed = id.bytes.size() - sizeof(std::uint64_t);
  // Half of the inputs get past the checksum.
  if (input.size() % 2 == 0) {
    const std::uint64_t checksum = xxh3_64(std::span(id.bytes).first(summed));
    std::memcpy(id.bytes.data() + summed, &checksum, sizeof(checksum));
  }
  try {
    require(pack_unique_id(parse_unique_id(id)) == id);
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kCorrupt);
  }
}

void blobs(std::span<const std::byte> input) {
  if (input.empty()) return;
  const int size = 1 + std::to_integer<int>(input[0]) % 16;
  input = input.subspan(1);
  try {
    const std::vector<Bytes> parts = cut_blobs(input, size, "peer");
    require(parts.size() == static_cast<std::size_t>(size));
    const Bytes joined = join_blobs(parts);
    require(joined.size() == input.size() && std::equal(joined.begin(), joined.end(), input.begin()));
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kCorrupt);
  }
}

/// A connection whose peer has sent these bytes and gone.
std::unique_ptr<Connection> connection_after(std::span<const std::byte> bytes) {
  int pair[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
  write_all(pair[1], bytes);
  ::close(pair[1]);
  return std::make_unique<Connection>(Socket(pair[0]), fixed_key(), fixed_key(), "peer", kMostBody);
}

void read_to_the_end(Connection& connection) {
  try {
    for (;;) {
      const ControlMessage message = connection.receive(steady_clock::now());
      require(message.body.size() <= kMostBody);
      to_string(message.type);
      const Error reason = abort_of(message);
      require(reason.message().size() <= 2 * kMostBody);
    }
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kPeerFailed ||
            error.code() == ErrorCode::kTimeout);
  }
}

void unencrypted(std::span<const std::byte> input) {
  const auto connection = connection_after(input);
  connection->given_up();
  read_to_the_end(*connection);
}

/// Sends arbitrary messages as a member that knows the keys: the input gives type, length and bytes of each.
void encrypted(std::span<const std::byte> input) {
  SecureChannel encrypt(fixed_key());
  Bytes stream;
  while (input.size() >= 2 && stream.size() < 60000) {
    const std::uint32_t type = std::to_integer<std::uint32_t>(input[0]);
    const std::size_t bytes = std::min<std::size_t>(std::to_integer<std::size_t>(input[1]), input.size() - 2);
    const std::uint64_t header[2] = {type, bytes};
    const auto header_bytes = std::as_bytes(std::span(header));
    const Bytes body = encrypt.encrypt(input.subspan(2, bytes), header_bytes);
    stream.insert(stream.end(), header_bytes.begin(), header_bytes.end());
    stream.insert(stream.end(), body.begin(), body.end());
    input = input.subspan(2 + bytes);
  }
  const auto connection = connection_after(stream);
  read_to_the_end(*connection);
}

void at_the_door(std::span<const std::byte> input) {
  static const RendezvousOptions options;
  static const Socket listener =
      listen_on(resolve("127.0.0.1", 0, steady_clock::now() + std::chrono::seconds(5)).front());
  static const SocketAddress address = listener.local();
  std::string why;
  std::optional<Socket> stranger = connect_to(address, nullptr, steady_clock::now() + std::chrono::seconds(5), why);
  if (!stranger) return;
  write_all(stranger->descriptor(), input);
  Acceptor acceptor(listener, fixed_key(), 2, kMostBody);
  for (int turn = 0; turn < 100 && acceptor.turned_away().empty(); ++turn) {
    // Nobody proves that it knows the secret by chance.
    require(acceptor.wait({}, steady_clock::now() + std::chrono::milliseconds(1)).empty());
  }
  require(acceptor.turned_away().size() == 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto input = std::as_bytes(std::span(data, size)).subspan(1);
  switch (data[0] % 5) {
    case 0:
      unique_id(input);
      break;
    case 1:
      blobs(input);
      break;
    case 2:
      unencrypted(input);
      break;
    case 3:
      encrypted(input);
      break;
    default:
      at_the_door(input);
  }
  return 0;
}
