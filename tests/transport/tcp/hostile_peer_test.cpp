// SPDX-License-Identifier: Apache-2.0

// Peers that follow no protocol: whatever they do, nothing hangs, nothing large is allocated, and honest ranks meet.

#include <gmock/gmock.h>
#include <poll.h>

#include <atomic>
#include <cstring>
#include <random>

#include "transport/tcp/handshake.hpp"
#include "transport/tcp/meeting.hpp"

namespace sparsecast::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

Socket raw_connection(std::uint16_t port) {
  std::string why;
  auto socket = connect_to(resolve("127.0.0.1", port, in(5s)).front(), nullptr, in(5s), why);
  if (!socket) throw std::runtime_error(why);
  return std::move(*socket);
}

template <class Message>
void send_raw(Socket& socket, const Message& message) {
  socket.send_some(std::as_bytes(std::span(&message, 1)));
}

template <class Message>
Message read_raw(Socket& socket) {
  Message message;
  auto left = std::as_writable_bytes(std::span(&message, 1));
  bool closed = false;
  while (!left.empty() && !closed && socket.wait(POLLIN, in(5s)))
    left = left.subspan(socket.receive_some(left, closed));
  return message;
}

bool closed_by_peer(Socket& socket) {
  std::array<std::byte, 256> part;
  bool closed = false;
  try {
    while (!closed && socket.wait(POLLIN, in(5s))) socket.receive_some(part, closed);
  } catch (const Error&) {
    return true;
  }
  return closed;
}

Hello valid_hello(const RendezvousOptions& options) {
  Hello hello;
  std::memcpy(hello.magic, kRendezvousMagic, sizeof(hello.magic));
  hello.rank = static_cast<std::uint32_t>(options.rank);
  hello.size = static_cast<std::uint32_t>(options.size);
  return hello;
}

class HostilePeer : public testing::Test {
 protected:
  void SetUp() override {
    if (!rendezvous_available()) GTEST_SKIP() << "built without libsodium";
  }

  /// Rank 0 waits while `attack` is at work; then the honest rank comes and the group must form.
  std::vector<std::string> group_forms_in_spite_of(const std::function<void(Meeting&)>& attack) {
    Meeting meeting(meeting_options(2));
    auto hub = std::async(std::launch::async, [&] { return meeting.meet(0); });
    attack(meeting);
    const auto member = meeting.meet(1);
    const auto group = hub.get();
    std::jthread other([&] { EXPECT_EQ(member->agree(3, 0, in(10s)), 4); });
    EXPECT_EQ(group->agree(4, 0, in(10s)), 4);
    return group->turned_away();
  }

  /// A listener that answers a member's connection as it likes.
  void expect_member_fails(ErrorCode code, std::initializer_list<std::string_view> parts,
                           const std::function<void(Socket&)>& answer, std::chrono::milliseconds timeout = 10s) {
    RendezvousOptions options = meeting_options(2, timeout);
    const Socket listener = listen_on(resolve("127.0.0.1", 0, in(5s)).front());
    options.port = listener.local().port();
    options.rank = 1;
    std::atomic<bool> done = false;
    std::jthread impostor([&] {
      std::vector<Socket> kept;
      while (!done) {
        if (!listener.wait(POLLIN, in(20ms))) continue;
        if (auto socket = accept_one(listener)) {
          answer(*socket);
          kept.push_back(std::move(*socket));
        }
      }
    });
    expect_error(
        code, [&] { Rendezvous::meet(options); }, parts);
    done = true;
  }
};

TEST_F(HostilePeer, GarbageIsTurnedAwayAtOnce) {
  const auto turned_away = group_forms_in_spite_of([](Meeting& meeting) {
    Socket socket = raw_connection(meeting.port());
    const std::string request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    socket.send_some(std::as_bytes(std::span<const char>(request)));
    EXPECT_TRUE(closed_by_peer(socket));
  });
  ASSERT_EQ(turned_away.size(), 1U);
  EXPECT_THAT(turned_away[0], HasSubstr("127.0.0.1:"));
  EXPECT_THAT(turned_away[0], HasSubstr("does not speak"));
}

TEST_F(HostilePeer, SilentAndHalfOpenConnectionsHoldUpNobody) {
  std::vector<Socket> silent;
  group_forms_in_spite_of([&](Meeting& meeting) {
    for (int i = 0; i < 20; ++i) silent.push_back(raw_connection(meeting.port()));
    send_raw(silent[0], 's');                              // Half a mark.
    send_raw(silent[1], valid_hello(meeting.options(1)));  // No proof ever.
    shutdown(silent[2].descriptor(), SHUT_WR);
  });
}

TEST_F(HostilePeer, AFloodOfConnectionsIsBounded) {
  std::vector<Socket> flood;
  const auto turned_away = group_forms_in_spite_of([&](Meeting& meeting) {
    for (int i = 0; i < 300; ++i) flood.push_back(raw_connection(meeting.port()));
  });
  EXPECT_LE(turned_away.size(), 32U);
}

TEST_F(HostilePeer, AnotherProtocolVersionIsToldSo) {
  const auto turned_away = group_forms_in_spite_of([](Meeting& meeting) {
    Socket socket = raw_connection(meeting.port());
    Hello hello = valid_hello(meeting.options(1));
    hello.protocol = 9;
    send_raw(socket, hello);
    EXPECT_EQ(read_raw<Challenge>(socket).reject_reason, static_cast<std::uint32_t>(RejectReason::kProtocol));
    EXPECT_TRUE(closed_by_peer(socket));
  });
  EXPECT_THAT(turned_away.at(0), HasSubstr("protocol 9"));
}

TEST_F(HostilePeer, AProofReplayedFromAnotherConnectionIsRefused) {
  // An eavesdropper has every byte of an honest handshake.
  RendezvousOptions options = meeting_options(2);
  const SecretKey key = key_from_secret(options.secret);
  group_forms_in_spite_of([&](Meeting& meeting) {
    const Hello hello = valid_hello(meeting.options(1));
    Socket first = raw_connection(meeting.port());
    send_raw(first, hello);
    const auto challenge = read_raw<Challenge>(first);
    Bytes transcript(sizeof(hello) + sizeof(challenge));
    std::memcpy(transcript.data(), &hello, sizeof(hello));
    std::memcpy(transcript.data() + sizeof(hello), &challenge, sizeof(challenge));
    const Proof honest = prove(key, "member", transcript);
    Socket second = raw_connection(meeting.port());
    send_raw(second, hello);
    EXPECT_NE(read_raw<Challenge>(second).nonce, challenge.nonce);
    send_raw(second, honest);
    EXPECT_EQ(read_raw<Welcome>(second).reject_reason, static_cast<std::uint32_t>(RejectReason::kSecret));
  });
}

TEST_F(HostilePeer, RandomBytesAtEveryPointChangeNothing) {
  std::mt19937 random(7);
  group_forms_in_spite_of([&](Meeting& meeting) {
    for (int i = 0; i < 60; ++i) {
      Socket socket = raw_connection(meeting.port());
      if (i % 2 == 0) send_raw(socket, valid_hello(meeting.options(1)));
      std::array<unsigned char, 200> noise;
      for (auto& byte : noise) byte = static_cast<unsigned char>(random());
      try {
        send_raw(socket, noise);
      } catch (const Error&) {
      }
    }
  });
}

TEST_F(HostilePeer, AnImpostorThatEchoesCannotPoseAsRankZero) {
  expect_member_fails(ErrorCode::kUnauthenticated, {"127.0.0.1", "does not know the secret"}, [](Socket& socket) {
    const auto hello = read_raw<Hello>(socket);
    Challenge challenge;
    std::memcpy(challenge.magic, kRendezvousMagic, sizeof(challenge.magic));
    challenge.nonce = hello.nonce;
    send_raw(socket, challenge);
    Welcome welcome;
    welcome.proof = read_raw<Proof>(socket);  // Reflected.
    send_raw(socket, welcome);
  });
}

TEST_F(HostilePeer, ASilentHostIsATimeoutThatNamesIt) {
  expect_member_fails(
      ErrorCode::kTimeout, {"rank 0 (127.0.0.1:", "silent"}, [](Socket&) {}, 400ms);
}

TEST_F(HostilePeer, AHostThatHangsUpIsATimeoutWithTheReason) {
  expect_member_fails(
      ErrorCode::kTimeout, {"not reached until the deadline", "the connection"}, [](Socket& socket) { socket.close(); },
      400ms);
}

TEST_F(HostilePeer, AnotherServiceAtThePortIsCorrupt) {
  expect_member_fails(ErrorCode::kCorrupt, {"something else"}, [](Socket& socket) {
    send_raw(socket, std::array<char, 48>{'S', 'S', 'H'});
  });
}

TEST_F(HostilePeer, AHostOfAnotherProtocolVersionIsUnsupported) {
  expect_member_fails(ErrorCode::kUnsupported, {"protocol 2", "this end 1"}, [](Socket& socket) {
    Challenge challenge;
    std::memcpy(challenge.magic, kRendezvousMagic, sizeof(challenge.magic));
    challenge.protocol = 2;
    challenge.reject_reason = static_cast<std::uint32_t>(RejectReason::kProtocol);
    send_raw(socket, challenge);
  });
}

/// Two ends of a connection whose keys are known here, so that a peer that knows the secret can misbehave as well.
struct Pair {
  Pair() {
    const Socket listener = listen_on(resolve("127.0.0.1", 0, in(5s)).front());
    raw = raw_connection(listener.local().port());
    std::optional<Socket> other;
    while (!(other = accept_one(listener))) std::this_thread::sleep_for(1ms);
    key = key_from_secret("a secret of sixteen characters");
    honest = std::make_unique<Connection>(std::move(*other), key, key, "rank 1 (peer)", 1000);
  }
  Socket raw;
  SecretKey key;
  std::unique_ptr<Connection> honest;
};

TEST_F(HostilePeer, AnOversizedMessageIsRefusedBeforeItIsRead) {
  Pair pair;
  const std::uint64_t header[2] = {static_cast<std::uint64_t>(MessageType::kBlob), std::uint64_t{1} << 60};
  send_raw(pair.raw, header);
  expect_error(ErrorCode::kCorrupt, [&] { pair.honest->receive(in(5s)); },
               {"rank 1 (peer)", "1152921504606846976", "1000"});
}

TEST_F(HostilePeer, AlteredAndRepeatedMessagesAreRefused) {
  Pair pair;
  const Bytes body = bytes_from("hello");
  const std::uint64_t header[2] = {static_cast<std::uint64_t>(MessageType::kBlob), body.size()};
  SecureChannel secure_channel(pair.key);
  const Bytes encrypted = secure_channel.encrypt(body, std::as_bytes(std::span(header)));
  send_raw(pair.raw, header);
  pair.raw.send_some(encrypted);
  EXPECT_EQ(pair.honest->receive(in(5s)).body, body);
  send_raw(pair.raw, header);  // The same once more: the counter has moved on.
  pair.raw.send_some(encrypted);
  expect_error(ErrorCode::kCorrupt, [&] { pair.honest->receive(in(5s)); }, {"not a message of this connection"});
}

TEST_F(HostilePeer, AMessageThatStopsHalfwayIsATimeout) {
  Pair pair;
  const std::uint64_t header[2] = {static_cast<std::uint64_t>(MessageType::kBlob), 900};
  send_raw(pair.raw, header);
  send_raw(pair.raw, std::array<char, 100>{});
  expect_error(ErrorCode::kTimeout, [&] { pair.honest->receive(in(200ms)); }, {"rank 1 (peer)"});
}

TEST_F(HostilePeer, AReaderThatTakesNothingIsATimeoutOfTheSender) {
  Pair pair;
  const Bytes large(64 << 20);
  expect_error(ErrorCode::kTimeout, [&] { pair.honest->send(MessageType::kBroadcast, large, in(200ms)); },
               {"rank 1 (peer)", "broadcast"});
}

}  // namespace
}  // namespace sparsecast::test
