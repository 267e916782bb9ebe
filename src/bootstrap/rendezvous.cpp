// The group: a star with rank 0 as its hub.
//
//     meeting --all ranks proved--> open --any failure--> broken (every rank is told, every later call throws)
//
//     all_gather   every rank -> hub: blob              hub -> every rank: all blobs
//     broadcast                                         hub -> every rank
//     agree        every rank -> hub: vote   hub -> coordinator: worst   coordinator -> hub: verdict   hub -> every
//     rank
//
// Collectives run in lockstep, so a message of another kind than the expected one means that the ranks disagree on what
// they do next: kGroupMismatch, not a wait until the deadline. The hub closes a step a little before its deadline, so
// that its sentence ("rank 2 is silent") reaches ranks that started at the same time before their own deadline.

#include "sparsecast/rendezvous.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "bootstrap/handshake.hpp"
#include "sparsecast/network.hpp"

namespace sparsecast {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::uint64_t kSmallestBound = 4096;
constexpr milliseconds kParting{200};
constexpr int kLargestGroup = 1 << 16;

Deadline close_of_step(Deadline deadline) {
  const auto left = deadline - steady_clock::now();
  return deadline - std::clamp<steady_clock::duration>(left / 8, steady_clock::duration::zero(), milliseconds(500));
}

std::string list_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 20;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kMost); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  if (ranks.size() > kMost) text += fmt::format(" and {} more", ranks.size() - kMost);
  return text;
}

template <class Value>
std::span<const std::byte> bytes_of(const Value& value) {
  return std::as_bytes(std::span(&value, 1));
}

template <class Value>
Value value_of(const Bytes& body, const std::string& peer) {
  Value value;
  if (body.size() != sizeof(Value)) {
    throw Error(ErrorCode::kCorrupt, fmt::format("sent {} bytes where {} belong", body.size(), sizeof(Value)), peer);
  }
  std::memcpy(&value, body.data(), sizeof(Value));
  return value;
}

Bytes join_blobs(const std::vector<Bytes>& blobs) {
  Bytes joined;
  for (const Bytes& blob : blobs) {
    const std::uint64_t size = blob.size();
    joined.insert(joined.end(), bytes_of(size).begin(), bytes_of(size).end());
  }
  for (const Bytes& blob : blobs) joined.insert(joined.end(), blob.begin(), blob.end());
  return joined;
}

std::vector<Bytes> cut_blobs(const Bytes& joined, int size, const std::string& peer) {
  const std::size_t ranks = static_cast<std::size_t>(size);
  const Error wrong(ErrorCode::kCorrupt, "sent parts whose sizes do not add up", peer);
  if (joined.size() < ranks * sizeof(std::uint64_t)) throw wrong;
  std::span<const std::byte> left = std::span(joined).subspan(ranks * sizeof(std::uint64_t));
  std::vector<Bytes> blobs;
  for (std::size_t r = 0; r < ranks; ++r) {
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, joined.data() + r * sizeof(bytes), sizeof(bytes));
    if (bytes > left.size()) throw wrong;
    blobs.emplace_back(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(bytes));
    left = left.subspan(static_cast<std::size_t>(bytes));
  }
  if (!left.empty()) throw wrong;
  return blobs;
}

void check_options(const RendezvousOptions& options) {
  if (options.size < 1 || options.size > kLargestGroup || options.rank < 0 || options.rank >= options.size) {
    throw Error(ErrorCode::kUsage, fmt::format("rank {} of {}", options.rank, options.size), "rendezvous");
  }
  if (options.max_blob_bytes > std::uint64_t{1} << 32) {
    throw Error(ErrorCode::kUsage, "blobs of at most 4 GiB are possible", "rendezvous");
  }
}

struct Vote {
  std::int32_t status = 0;
  std::int32_t coordinator = 0;
};

}  // namespace

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

struct RendezvousListener::Impl {
  Socket socket;
  std::string host;
  std::uint16_t port = 0;
};

RendezvousListener::RendezvousListener(const RendezvousOptions& options) : impl_(std::make_unique<Impl>()) {
  try {
    const std::string host =
        options.interface.empty()
            ? (options.host.size() > 2 && options.host.front() == '[' ? options.host.substr(1, options.host.size() - 2)
                                                                      : options.host)
            : choose_interface(network_interfaces(), options.interface, "").interface.address;
    impl_->socket = listen_on(resolve(host, options.port, steady_clock::now() + options.timeout).front());
  } catch (const Error& error) {
    throw error.within("rendezvous, rank 0");
  }
  impl_->host = impl_->socket.local().host();
  impl_->port = impl_->socket.local().port();
}

RendezvousListener::~RendezvousListener() = default;
const std::string& RendezvousListener::host() const noexcept { return impl_->host; }
std::uint16_t RendezvousListener::port() const noexcept { return impl_->port; }

struct Rendezvous::Impl {
  explicit Impl(const RendezvousOptions& options)
      : rank(options.rank), size(options.size), max_blob_bytes(options.max_blob_bytes) {
    // A member is sent everything; the hub only one part at a time.
    const std::uint64_t part = std::max(max_blob_bytes, kSmallestBound);
    max_body_bytes = rank == 0 ? part : part + static_cast<std::uint64_t>(size) * (max_blob_bytes + 8);
  }

  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void gather_members(const RendezvousOptions& options, const Socket& listener, const SecretKey& key,
                      Deadline deadline);
  void admit(const RendezvousOptions& options, Authenticated& peer, std::vector<std::string>& notes);
  void drop_the_gone(std::vector<std::string>& notes);
  std::vector<int> missing() const;
  [[noreturn]] void fail_meeting(const Error& error, Connection* newcomer);

  std::string context(const char* phase) const {
    return fmt::format("rendezvous, rank {} of {}: {}", rank, size, phase);
  }
  template <class Body>
  auto guard(const char* phase, const Body& body);
  void tell_all(MessageType type, std::span<const std::byte> body, Deadline deadline);
  void break_with(const Error& error) noexcept;
  Bytes expect(Connection& peer, MessageType type, Deadline deadline);
  /// Every member's message; when some are silent, all of them are named.
  std::vector<Bytes> collect(MessageType type, Deadline deadline);
  void deliver_verdict(std::int32_t worst, int decided_by, Deadline deadline);
  int agree_as_hub(int status, int coordinator, Deadline deadline);
  int agree_as_member(int status, int coordinator, Deadline deadline);

  int rank;
  int size;
  std::uint64_t max_blob_bytes;
  std::uint64_t max_body_bytes = 0;
  std::string own_host;
  std::string place;
  std::vector<std::unique_ptr<Connection>> members;  ///< Hub: by rank; none for itself.
  std::unique_ptr<Connection> hub;                   ///< Members.
  std::vector<std::string> turned_away;
  std::optional<std::string> broken;
};

Rendezvous::Impl::~Impl() {
  if (!broken) return;
  const Deadline soon = steady_clock::now() + kParting;
  if (hub) hub->linger(soon);
  for (const auto& member : members) {
    if (member) member->linger(soon);
  }
}

// --- meeting ---

std::vector<int> Rendezvous::Impl::missing() const {
  std::vector<int> ranks;
  for (int r = 1; r < size; ++r) {
    if (!members[static_cast<std::size_t>(r)]) ranks.push_back(r);
  }
  return ranks;
}

void Rendezvous::Impl::fail_meeting(const Error& error, Connection* newcomer) {
  const Deadline soon = steady_clock::now() + kParting;
  const Bytes body = abort_body(error);
  if (newcomer != nullptr) {
    try {
      newcomer->send(MessageType::kAbort, body, soon);
      newcomer->linger(soon);
    } catch (const Error&) {
    }
  }
  broken = error.message();
  tell_all(MessageType::kAbort, body, soon);
  throw error.within("rendezvous, rank 0");
}

void Rendezvous::Impl::drop_the_gone(std::vector<std::string>& notes) {
  for (auto& member : members) {
    if (!member) continue;
    if (const auto why = member->given_up()) {
      notes.push_back(*why);
      member.reset();
    }
  }
}

void Rendezvous::Impl::admit(const RendezvousOptions& options, Authenticated& peer, std::vector<std::string>& notes) {
  const Hello& hello = peer.hello;
  Connection& connection = *peer.connection;
  if (hello.generation != options.generation) {
    const Error error(ErrorCode::kGroupMismatch, fmt::format("{} is of generation {}, this group of {}",
                                                             connection.name(), hello.generation, options.generation));
    notes.push_back(error.message());
    try {
      const Deadline soon = steady_clock::now() + kParting;
      connection.send(MessageType::kAbort, abort_body(error), soon);
      connection.linger(soon);
    } catch (const Error&) {
    }
    return;
  }
  if (hello.size != static_cast<std::uint32_t>(size)) {
    fail_meeting({ErrorCode::kGroupMismatch,
                  fmt::format("{} expects a group of {} ranks, rank 0 one of {}", connection.name(), hello.size, size)},
                 &connection);
  }
  if (hello.rank == 0 || hello.rank >= hello.size) {
    fail_meeting({ErrorCode::kGroupMismatch,
                  fmt::format("{} cannot be a member of a group of {} whose rank 0 is here", connection.name(), size)},
                 &connection);
  }
  auto& place_of_rank = members[hello.rank];
  if (place_of_rank && !place_of_rank->given_up()) {
    fail_meeting({ErrorCode::kGroupMismatch,
                  fmt::format("two ranks of one number: {} and {}", place_of_rank->name(), connection.name())},
                 &connection);
  }
  place_of_rank = std::move(peer.connection);
}

void Rendezvous::Impl::gather_members(const RendezvousOptions& options, const Socket& listener, const SecretKey& key,
                                      Deadline deadline) {
  Door door(listener, key, size, max_body_bytes);
  std::vector<std::string> notes;
  members.resize(static_cast<std::size_t>(size));
  const Deadline close = close_of_step(deadline);
  while (!missing().empty()) {
    std::vector<int> descriptors;
    for (const auto& member : members) {
      if (member) descriptors.push_back(member->socket().descriptor());
    }
    for (Authenticated& peer : door.wait(descriptors, close)) admit(options, peer, notes);
    drop_the_gone(notes);
    turned_away = door.turned_away();
    turned_away.insert(turned_away.end(),
                       notes.end() - static_cast<std::ptrdiff_t>(std::min<std::size_t>(notes.size(), 16)), notes.end());
    if (steady_clock::now() >= close && !missing().empty()) {
      std::string text = fmt::format("{} of {} did not come until the deadline", list_ranks(missing()), size);
      for (const std::string& line : turned_away) text += "; " + line;
      fail_meeting({ErrorCode::kTimeout, text}, nullptr);
    }
  }
  tell_all(MessageType::kStart, {}, deadline);
}

std::shared_ptr<Rendezvous> Rendezvous::meet(const RendezvousOptions& options) {
  check_options(options);
  if (options.rank != 0) {
    const Deadline deadline = steady_clock::now() + options.timeout;
    const SecretKey key = key_from_secret(options.secret);
    auto impl = std::make_unique<Impl>(options);
    try {
      impl->hub = knock(options, key, impl->max_body_bytes, deadline);
      impl->own_host = impl->hub->socket().local().host();
      impl->place = fmt::format("{}, hub {}", impl->hub->socket().local().text(), impl->hub->socket().peer().text());
      impl->expect(*impl->hub, MessageType::kStart, deadline);
    } catch (const Error& error) {
      throw error.within(fmt::format("rendezvous, rank {} of {}", options.rank, options.size));
    }
    return std::shared_ptr<Rendezvous>(new Rendezvous(std::move(impl)));
  }
  key_from_secret(options.secret);  // Refused before a port is opened.
  RendezvousListener listener(options);
  return meet(options, listener);
}

std::shared_ptr<Rendezvous> Rendezvous::meet(const RendezvousOptions& options, RendezvousListener& listener) {
  check_options(options);
  if (options.rank != 0) throw Error(ErrorCode::kUsage, "only rank 0 listens", "rendezvous");
  const SecretKey key = key_from_secret(options.secret);
  auto impl = std::make_unique<Impl>(options);
  impl->own_host = listener.host();
  impl->place = listener.impl_->socket.local().text();
  impl->gather_members(options, listener.impl_->socket, key, steady_clock::now() + options.timeout);
  return std::shared_ptr<Rendezvous>(new Rendezvous(std::move(impl)));
}

Rendezvous::Rendezvous(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Rendezvous::~Rendezvous() {
  // So that a rank that still waits for the end of the last collective does not take this for a death.
  if (impl_->broken) return;
  try {
    impl_->tell_all(MessageType::kLeave, {}, steady_clock::now() + milliseconds(100));
  } catch (const Error&) {
  }
}

int Rendezvous::rank() const noexcept { return impl_->rank; }
int Rendezvous::size() const noexcept { return impl_->size; }
const std::vector<std::string>& Rendezvous::turned_away() const noexcept { return impl_->turned_away; }
std::string Rendezvous::describe() const {
  return fmt::format("rank {} of {} at {}", impl_->rank, impl_->size, impl_->place);
}

// --- the open group ---

void Rendezvous::Impl::tell_all(MessageType type, std::span<const std::byte> body, Deadline deadline) {
  std::exception_ptr first;
  const auto send = [&](Connection* peer) {
    try {
      if (peer != nullptr) peer->send(type, body, deadline);
    } catch (const Error&) {
      if (!first) first = std::current_exception();
    }
  };
  send(hub.get());
  for (const auto& member : members) send(member.get());
  if (first && type != MessageType::kAbort) std::rethrow_exception(first);
}

void Rendezvous::Impl::break_with(const Error& error) noexcept {
  if (broken) return;
  try {
    broken = error.what();
    tell_all(MessageType::kAbort, abort_body(error), steady_clock::now() + kParting);
  } catch (...) {
    if (!broken) broken = "out of memory";
  }
}

template <class Body>
auto Rendezvous::Impl::guard(const char* phase, const Body& body) {
  if (broken) {
    throw Error(ErrorCode::kPeerFailed, fmt::format("the channel is broken since an earlier failure ({})", *broken),
                context(phase));
  }
  try {
    return body();
  } catch (const Error& error) {
    break_with(error);
    throw error.within(context(phase));
  }
}

Bytes Rendezvous::Impl::expect(Connection& peer, MessageType type, Deadline deadline) {
  ControlMessage message = peer.receive(deadline);
  if (message.type == MessageType::kAbort) {
    const Error reason = abort_of(message);
    throw Error(reason.code(), fmt::format("gave up: {}", reason.message()), peer.name());
  }
  if (message.type == MessageType::kLeave) throw Error(ErrorCode::kPeerFailed, "has left the group", peer.name());
  if (message.type != type) {
    throw Error(ErrorCode::kGroupMismatch,
                fmt::format("is at another step: it sent '{}' where '{}' was expected", to_string(message.type),
                            to_string(type)),
                peer.name());
  }
  return std::move(message.body);
}

std::vector<Bytes> Rendezvous::Impl::collect(MessageType type, Deadline deadline) {
  std::vector<Bytes> bodies(static_cast<std::size_t>(size));
  std::vector<int> silent;
  for (int r = 1; r < size; ++r) {
    try {
      bodies[static_cast<std::size_t>(r)] = expect(*members[static_cast<std::size_t>(r)], type, deadline);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kTimeout) throw;
      silent.push_back(r);
    }
  }
  if (silent.empty()) return bodies;
  std::string names;
  for (const int r : silent) names += (names.empty() ? "" : ", ") + members[static_cast<std::size_t>(r)]->name();
  throw Error(ErrorCode::kTimeout, fmt::format("silent until the deadline: {}", names));
}

std::vector<Bytes> Rendezvous::all_gather(std::span<const std::byte> own, Deadline deadline) {
  Impl& impl = *impl_;
  return impl.guard("all_gather", [&] {
    if (own.size() > impl.max_blob_bytes) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("a part of {} bytes; at most {} are possible", own.size(), impl.max_blob_bytes));
    }
    if (impl.rank != 0) {
      impl.hub->send(MessageType::kBlob, own, deadline);
      return cut_blobs(impl.expect(*impl.hub, MessageType::kGathered, deadline), impl.size, impl.hub->name());
    }
    std::vector<Bytes> blobs = impl.collect(MessageType::kBlob, close_of_step(deadline));
    blobs[0].assign(own.begin(), own.end());
    impl.tell_all(MessageType::kGathered, join_blobs(blobs), deadline);
    return blobs;
  });
}

Bytes Rendezvous::broadcast(std::span<const std::byte> own, Deadline deadline) {
  Impl& impl = *impl_;
  return impl.guard("broadcast", [&] {
    if (impl.rank != 0) return impl.expect(*impl.hub, MessageType::kBroadcast, deadline);
    if (own.size() > impl.max_blob_bytes) {
      throw Error(ErrorCode::kUsage, fmt::format("{} bytes; at most {} are possible", own.size(), impl.max_blob_bytes));
    }
    impl.tell_all(MessageType::kBroadcast, own, deadline);
    return Bytes(own.begin(), own.end());
  });
}

/// A verdict is final: where it cannot be delivered, the channel breaks, but the call that decided succeeds.
void Rendezvous::Impl::deliver_verdict(std::int32_t worst, int decided_by, Deadline deadline) {
  for (int r = 1; r < size; ++r) {
    if (r == decided_by) continue;
    try {
      members[static_cast<std::size_t>(r)]->send(MessageType::kVerdict, bytes_of(worst), deadline);
    } catch (const Error& error) {
      broken = fmt::format("the verdict could not be delivered: {}", error.what());
    }
  }
}

int Rendezvous::Impl::agree_as_hub(int status, int coordinator, Deadline deadline) {
  const std::vector<Bytes> bodies = collect(MessageType::kVote, close_of_step(deadline));
  Vote worst{status, coordinator};
  for (int r = 1; r < size; ++r) {
    const Connection& member = *members[static_cast<std::size_t>(r)];
    const Vote vote = value_of<Vote>(bodies[static_cast<std::size_t>(r)], member.name());
    if (vote.coordinator != coordinator) {
      throw Error(ErrorCode::kGroupMismatch,
                  fmt::format("takes rank {} for the coordinator, this rank takes {}", vote.coordinator, coordinator),
                  member.name());
    }
    worst.status = std::max(worst.status, vote.status);
  }
  std::int32_t verdict = worst.status;
  if (coordinator != 0) {
    Connection& decider = *members[static_cast<std::size_t>(coordinator)];
    decider.send(MessageType::kVote, bytes_of(worst), deadline);
    verdict = value_of<std::int32_t>(expect(decider, MessageType::kVerdict, deadline), decider.name());
  }
  deliver_verdict(verdict, coordinator, deadline);
  return verdict;
}

int Rendezvous::Impl::agree_as_member(int status, int coordinator, Deadline deadline) {
  const Vote vote{status, coordinator};
  hub->send(MessageType::kVote, bytes_of(vote), deadline);
  if (rank != coordinator) {
    return value_of<std::int32_t>(expect(*hub, MessageType::kVerdict, deadline), hub->name());
  }
  const auto worst = value_of<Vote>(expect(*hub, MessageType::kVote, deadline), hub->name());
  try {
    hub->send(MessageType::kVerdict, bytes_of(worst.status), deadline);
  } catch (const Error& error) {
    broken = fmt::format("the verdict could not be delivered: {}", error.what());
  }
  return worst.status;
}

int Rendezvous::agree(int status, int coordinator, Deadline deadline) {
  Impl& impl = *impl_;
  return impl.guard("agree", [&] {
    if (coordinator < 0 || coordinator >= impl.size) {
      throw Error(ErrorCode::kUsage, fmt::format("coordinator {} of {} ranks", coordinator, impl.size));
    }
    return impl.rank == 0 ? impl.agree_as_hub(status, coordinator, deadline)
                          : impl.agree_as_member(status, coordinator, deadline);
  });
}

void Rendezvous::abort(const std::string& reason) noexcept {
  try {
    impl_->break_with(Error(ErrorCode::kPeerFailed, reason));
  } catch (...) {
  }
}

std::optional<std::string> Rendezvous::aborted() noexcept {
  Impl& impl = *impl_;
  try {
    if (impl.broken) return impl.broken;
    std::optional<std::string> why;
    if (impl.hub) why = impl.hub->given_up();
    for (const auto& member : impl.members) {
      if (member && !why) why = member->given_up();
    }
    if (why) impl.break_with(Error(ErrorCode::kPeerFailed, *why));
    return why;
  } catch (...) {
    return "out of memory";
  }
}

// --- parts of a group ---

namespace {

struct Membership {
  std::int32_t color = 0;
  std::int32_t key = 0;
  char host[64] = {};
};

struct Invitation {
  std::uint16_t port = 0;
  Nonce secret{};
};

std::string secret_of(const Invitation& invitation) {
  return {reinterpret_cast<const char*>(invitation.secret.data()), invitation.secret.size()};
}

}  // namespace

std::shared_ptr<ControlChannel> Rendezvous::split(int color, int key, Deadline deadline) {
  Membership own{color, key, {}};
  impl_->own_host.copy(own.host, sizeof(own.host) - 1);
  const std::vector<Bytes> all = all_gather(bytes_of(own), deadline);
  std::vector<Membership> memberships;
  std::vector<int> group;
  for (int r = 0; r < size(); ++r) {
    memberships.push_back(value_of<Membership>(all[static_cast<std::size_t>(r)], fmt::format("rank {}", r)));
    memberships.back().host[sizeof(own.host) - 1] = '\0';
    if (memberships.back().color == color) group.push_back(r);
  }
  std::stable_sort(group.begin(), group.end(), [&](int a, int b) {
    return memberships[static_cast<std::size_t>(a)].key < memberships[static_cast<std::size_t>(b)].key;
  });
  const bool leads = color >= 0 && group.front() == rank();
  RendezvousOptions options;
  options.max_blob_bytes = impl_->max_blob_bytes;
  std::unique_ptr<RendezvousListener> listener;
  Invitation invitation;
  std::exception_ptr failure;
  if (leads) {
    try {
      options.host = own.host;
      listener = std::make_unique<RendezvousListener>(options);
      invitation = {listener->port(), fresh_nonce()};
    } catch (const Error&) {
      failure = std::current_exception();
    }
  }
  // The invitations travel sealed, so nobody outside the group learns a part's secret.
  const std::vector<Bytes> invitations = all_gather(bytes_of(invitation), deadline);
  if (color < 0) return nullptr;
  if (failure) std::rethrow_exception(failure);
  const int leader = group.front();
  invitation = value_of<Invitation>(invitations[static_cast<std::size_t>(leader)], fmt::format("rank {}", leader));
  if (invitation.port == 0) {
    throw Error(ErrorCode::kPeerFailed, fmt::format("rank {} could not open a port for its part of the group", leader));
  }
  options.host = memberships[static_cast<std::size_t>(leader)].host;
  options.port = invitation.port;
  options.secret = secret_of(invitation);
  options.size = static_cast<int>(group.size());
  options.rank = static_cast<int>(std::find(group.begin(), group.end(), rank()) - group.begin());
  options.timeout = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
  return leads ? meet(options, *listener) : meet(options);
}

}  // namespace sparsecast
