// SPDX-License-Identifier: Apache-2.0

// Control channel over TCP: rank 0 accepts the ranks that know the secret (group_acceptor.hpp, handshake.hpp); from
// then on the group is a star of encrypted connections (star_group.hpp).

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "core/congestion.hpp"
#include "sparsecast/tcp_transport.hpp"
#include "transport/control/blobs.hpp"
#include "transport/control/cancellation_token.hpp"
#include "transport/control/star_group.hpp"
#include "transport/tcp/group_acceptor.hpp"
#include "transport/tcp/handshake.hpp"
#include "transport/tcp/socket.hpp"
#include "transport/tcp/unique_id.hpp"

namespace sparsecast {

MeetingCancellation::MeetingCancellation() : token_(std::make_unique<CancellationToken>(/*any_thread=*/true)) {}
MeetingCancellation::~MeetingCancellation() = default;

void MeetingCancellation::cancel(const std::string& reason) noexcept {
  if (!token_->request_cancel(reason)) return;
  token_->mark_handled();  // The meetings themselves tell their peers.
  token_->end_call();
}

struct RendezvousListener::Impl {
  Socket socket;
  std::string host;
  std::uint16_t port = 0;
};

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr int kLargestGroup = 1 << 16;
constexpr milliseconds kCloseTimeout{100};

void check_options(const RendezvousOptions& options) {
  if (options.size < 1 || options.size > kLargestGroup || options.rank < 0 || options.rank >= options.size) {
    throw Error(ErrorCode::kUsage, fmt::format("rank {} of {}", options.rank, options.size), "rendezvous");
  }
  if (options.max_blob_bytes > std::uint64_t{1} << 32) {
    throw Error(ErrorCode::kUsage, "blobs of at most 4 GiB are possible", "rendezvous");
  }
  if (options.cancellation) options.cancellation->token().check();
}

}  // namespace

struct Rendezvous::Impl {
  explicit Impl(const RendezvousOptions& options)
      : star("rendezvous", options.rank, options.size, options.max_blob_bytes, /*any_thread=*/true),
        congestion(options.congestion) {}

  StarGroup star;
  std::string congestion;  ///< RendezvousOptions::congestion, which parts of the group have as well.
  ChildChannels parts;
  std::string own_host;
  std::string place;
  std::vector<std::string> turned_away;
};

std::shared_ptr<Rendezvous> Rendezvous::meet(const RendezvousOptions& options) {
  check_options(options);
  if (options.rank != 0) {
    const Deadline deadline = steady_clock::now() + options.timeout;
    const SecretKey key = key_from_secret(options.secret);
    auto impl = std::make_shared<Impl>(options);
    try {
      auto hub = connect_to_hub(options, key, impl->star.max_body_bytes(), deadline);
      impl->own_host = hub->socket().local().host();
      impl->place = fmt::format("{}, hub {}", hub->socket().local().text(), hub->socket().peer().text());
      if (options.cancellation) hub->set_cancellation(options.cancellation->token());
      StarGroup::expect(*hub, MessageType::kStart, deadline);
      impl->star.connect_hub(std::move(hub));
    } catch (const Error& error) {
      throw error.within(fmt::format("rendezvous, rank {} of {}", options.rank, options.size));
    }
    return std::shared_ptr<Rendezvous>(new Rendezvous(std::move(impl)));
  }
  key_from_secret(options.secret);  // Rejects a bad secret before a port is opened.
  RendezvousListener listener(options);
  return meet(options, listener);
}

std::shared_ptr<Rendezvous> Rendezvous::meet(const RendezvousOptions& options, RendezvousListener& listener) {
  check_options(options);
  if (options.rank != 0) throw Error(ErrorCode::kUsage, "only rank 0 listens", "rendezvous");
  const Deadline deadline = steady_clock::now() + options.timeout;
  const SecretKey key = key_from_secret(options.secret);
  auto impl = std::make_shared<Impl>(options);
  impl->own_host = listener.host();
  impl->place = listener.impl_->socket.local().text();
  GroupAcceptor acceptor(options, listener.impl_->socket, key, impl->star.max_body_bytes());
  impl->star.connect_members(acceptor.gather(deadline));
  impl->turned_away = acceptor.turned_away();
  impl->star.tell_all(MessageType::kStart, {}, deadline);
  return std::shared_ptr<Rendezvous>(new Rendezvous(std::move(impl)));
}

Rendezvous::Rendezvous(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

Rendezvous::~Rendezvous() {
  // A rank that still waits for the end of the last collective must not take the closing for a failure.
  impl_->star.send_close(steady_clock::now() + kCloseTimeout);
}

int Rendezvous::rank() const noexcept { return impl_->star.rank(); }
int Rendezvous::size() const noexcept { return impl_->star.size(); }
std::uint64_t Rendezvous::max_blob_bytes() const noexcept { return impl_->star.max_blob_bytes(); }
const std::vector<std::string>& Rendezvous::turned_away() const noexcept { return impl_->turned_away; }
std::string Rendezvous::describe() const { return fmt::format("rank {} of {} at {}", rank(), size(), impl_->place); }

std::vector<Bytes> Rendezvous::all_gather(std::span<const std::byte> own, Deadline deadline) {
  return impl_->star.all_gather(own, deadline);
}
Bytes Rendezvous::reduce(std::span<const std::byte> own, const Combine& combine, Deadline deadline) {
  return impl_->star.reduce(own, combine, deadline);
}
Bytes Rendezvous::broadcast(std::span<const std::byte> own, Deadline deadline) {
  return impl_->star.broadcast(own, deadline);
}
int Rendezvous::agree(int status, int coordinator, Deadline deadline) {
  return impl_->star.agree(status, coordinator, deadline);
}
void Rendezvous::abort(const std::string& reason) noexcept {
  impl_->star.abort(reason);
  impl_->parts.abort(reason);
}
std::optional<std::string> Rendezvous::aborted() noexcept { return impl_->star.aborted(); }

// --- parts of a group ---

namespace {

/// Message of the rank that leads a part of a group; other ranks send an empty message.
struct Invitation {
  char host[64] = {};
  std::uint16_t port = 0;  ///< 0: the leader could not open one.
  Nonce secret{};
};

/// Returns the first rank of each part of the group.
std::set<int> leaders_of(const std::vector<SplitChoice>& choices) {
  std::map<int, std::pair<int, int>> first;  ///< By color: key and rank.
  for (std::size_t r = 0; r < choices.size(); ++r) {
    if (choices[r].color < 0) continue;
    const std::pair own{choices[r].key, static_cast<int>(r)};
    const auto [known, added] = first.try_emplace(choices[r].color, own);
    if (!added) known->second = std::min(known->second, own);
  }
  std::set<int> leaders;
  for (const auto& [color, leader] : first) leaders.insert(leader.second);
  return leaders;
}

}  // namespace

std::shared_ptr<ControlChannel> Rendezvous::split(int color, int key, Deadline deadline) {
  const std::vector<SplitChoice> choices = values_of<SplitChoice>(
      reduce(bytes_of(SplitChoice{color, key}), join_values<SplitChoice>, deadline), static_cast<std::size_t>(size()));
  const std::vector<int> group = ranks_of_color(choices, color);
  const bool leads = color >= 0 && group.front() == rank();
  RendezvousOptions options;
  options.max_blob_bytes = max_blob_bytes();
  options.congestion = impl_->congestion;
  std::unique_ptr<RendezvousListener> listener;
  Invitation invitation;
  std::exception_ptr failure;
  if (leads) {
    try {
      impl_->own_host.copy(invitation.host, sizeof(invitation.host) - 1);
      options.host = invitation.host;
      listener = std::make_unique<RendezvousListener>(options);
      invitation.port = listener->port();
      invitation.secret = fresh_nonce();
    } catch (const Error&) {
      failure = std::current_exception();
    }
  }
  // The invitations travel encrypted, so nobody outside the group learns a part's secret.
  const std::set<int> leaders = leaders_of(choices);
  const std::vector<Invitation> invitations = values_of<Invitation>(
      reduce(leads ? bytes_of(invitation) : std::span<const std::byte>{}, join_values<Invitation>, deadline),
      leaders.size());
  if (color < 0) return nullptr;
  if (failure) std::rethrow_exception(failure);
  const int leader = group.front();
  invitation = invitations[static_cast<std::size_t>(std::distance(leaders.begin(), leaders.find(leader)))];
  if (invitation.port == 0) {
    throw Error(ErrorCode::kPeerFailed, fmt::format("rank {} could not open a port for its part of the group", leader));
  }
  invitation.host[sizeof(invitation.host) - 1] = '\0';
  options.host = invitation.host;
  options.port = invitation.port;
  options.secret = secret_text(invitation.secret);
  options.size = static_cast<int>(group.size());
  options.rank = static_cast<int>(std::find(group.begin(), group.end(), rank()) - group.begin());
  options.timeout = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
  const auto why_whole_failed = [whole = std::weak_ptr(impl_)]() -> std::optional<std::string> {
    const std::shared_ptr<Impl> here = whole.lock();
    return here ? here->star.aborted() : std::nullopt;
  };
  // Cancels the meeting if the parent fails, because a rank that has died since its invitation will not come.
  options.cancellation = std::make_shared<MeetingCancellation>();
  options.cancellation->token_->set_parent(why_whole_failed);
  const std::shared_ptr<Rendezvous> part = leads ? meet(options, *listener) : meet(options);
  part->impl_->star.set_parent(why_whole_failed);
  return impl_->parts.add(part);
}

using std::chrono::steady_clock;

void parse_endpoint(const std::string& text, std::string& host, std::uint16_t& port) {
  const std::size_t colon = text.rfind(':');
  const bool brackets = !text.empty() && text.front() == '[';
  const bool ambiguous = !brackets && colon != std::string::npos && text.find(':') != colon;
  if (colon == std::string::npos || colon == 0 || ambiguous || (brackets && (colon < 3 || text[colon - 1] != ']'))) {
    throw Error(ErrorCode::kUsage, fmt::format("'{}' is not HOST:PORT; an IPv6 address needs [brackets]", text));
  }
  const char* const begin = text.data() + colon + 1;
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(begin, end, port);
  if (code != std::errc{} || stop != end) {
    throw Error(ErrorCode::kUsage, fmt::format("'{}' has no port from 0 to 65535", text));
  }
  host = brackets ? text.substr(1, colon - 2) : text.substr(0, colon);
}

RendezvousListener::RendezvousListener(const RendezvousOptions& options) : impl_(std::make_unique<Impl>()) {
  try {
    const std::string host = options.interface.empty()
                                 ? options.host
                                 : choose_interface(network_interfaces(), options.interface, "").interface.address;
    impl_->socket = listen_on(resolve(host, options.port, steady_clock::now() + options.timeout).front(),
                              congestion_control(options.congestion));
  } catch (const Error& error) {
    throw error.within("rendezvous, rank 0");
  }
  impl_->host = impl_->socket.local().host();
  impl_->port = impl_->socket.local().port();
}

RendezvousListener::~RendezvousListener() = default;
const std::string& RendezvousListener::host() const noexcept { return impl_->host; }
std::uint16_t RendezvousListener::port() const noexcept { return impl_->port; }

}  // namespace sparsecast
