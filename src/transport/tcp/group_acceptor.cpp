// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/group_acceptor.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>

namespace sparsecast {

using std::chrono::steady_clock;

namespace {

constexpr std::size_t kNotes = 16;

std::string list_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 20;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kMost); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  if (ranks.size() > kMost) text += fmt::format(" and {} more", ranks.size() - kMost);
  return text;
}

/// Sends the error to peers whose connections are about to be closed; best effort.
void say_why(const std::vector<Connection*>& peers, const Error& error) {
  const Bytes reason = abort_body(error);
  const Deadline soon = steady_clock::now() + kLingerTimeout;
  for (Connection* const peer : peers) {
    try {
      peer->send(MessageType::kAbort, reason, soon);
    } catch (const Error&) {
    }
  }
  for (Connection* const peer : peers) peer->linger(soon);
}

/// Raises this process's limit of open files to what the hub of the group needs: a connection to each rank, and the
/// files that the process has open. The soft limit is usually 1024, and a process may raise it up to its hard limit.
/// Throws Error{kIo} if the hard limit is too low, because connections could not be accepted and their ranks would seem
/// to be missing.
void allow_open_files(int size) {
  constexpr rlim_t kOthers = 1024;
  const auto ranks = static_cast<rlim_t>(size);
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= ranks + kOthers) return;
  if (limit.rlim_max < ranks) {
    throw Error(
        ErrorCode::kIo,
        fmt::format("rank 0 has a connection to each of {} ranks, and this process may open only {} files; raise "
                    "the limit (ulimit -Hn)",
                    size, limit.rlim_max),
        "rendezvous, rank 0");
  }
  limit.rlim_cur = std::min(limit.rlim_max, ranks + kOthers);
  setrlimit(RLIMIT_NOFILE, &limit);  // Best effort: the current limit may suffice.
}

}  // namespace

GroupAcceptor::GroupAcceptor(const RendezvousOptions& options, const Socket& listener, const SecretKey& key,
                             std::uint64_t max_body_bytes)
    : options_(options),
      place_(listener.local()),
      acceptor_(listener, key, options.size, max_body_bytes),
      size_(options.size),
      members_(static_cast<std::size_t>(options.size)) {
  allow_open_files(size_);
}

std::vector<int> GroupAcceptor::missing() const {
  std::vector<int> ranks;
  for (int r = 1; r < size_; ++r) {
    if (!members_[static_cast<std::size_t>(r)]) ranks.push_back(r);
  }
  return ranks;
}

void GroupAcceptor::fail(const Error& error, Connection* newcomer) {
  std::vector<Connection*> peers;
  if (newcomer != nullptr) peers.push_back(newcomer);
  for (const auto& member : members_) {
    if (member) peers.push_back(member.get());
  }
  say_why(peers, error);
  throw error.within("rendezvous, rank 0");
}

void GroupAcceptor::drop_disconnected() {
  for (auto& member : members_) {
    if (!member) continue;
    if (const auto why = member->given_up()) {
      notes_.push_back(*why);
      member.reset();
    }
  }
}

void GroupAcceptor::admit(Authenticated& peer) {
  const Hello& hello = peer.hello;
  Connection& connection = *peer.connection;
  if (hello.generation != options_.generation) {
    const Error error(ErrorCode::kGroupMismatch, fmt::format("{} is of generation {}, this group of {}",
                                                             connection.name(), hello.generation, options_.generation));
    notes_.push_back(error.message());
    say_why({&connection}, error);
    return;
  }
  if (hello.size != static_cast<std::uint32_t>(size_)) {
    fail({ErrorCode::kGroupMismatch,
          fmt::format("{} expects a group of {} ranks, rank 0 one of {}", connection.name(), hello.size, size_)},
         &connection);
  }
  if (hello.rank == 0 || hello.rank >= hello.size) {
    fail({ErrorCode::kGroupMismatch,
          fmt::format("{} cannot be a member of a group of {} whose rank 0 is here", connection.name(), size_)},
         &connection);
  }
  auto& place_of_rank = members_[hello.rank];
  if (place_of_rank && !place_of_rank->given_up()) {
    fail({ErrorCode::kGroupMismatch,
          fmt::format("two ranks of one number: {} and {}", place_of_rank->name(), connection.name())},
         &connection);
  }
  place_of_rank = std::move(peer.connection);
}

void GroupAcceptor::check_cancelled(Deadline& look) {
  try {
    const CancellationToken* const token = options_.cancellation ? &options_.cancellation->token() : nullptr;
    sparsecast::check_cancelled(token);
    if (token == nullptr || steady_clock::now() < look) return;
    token->check_parent();
    look = steady_clock::now() + kParentCheckInterval;
  } catch (const Error& error) {
    fail(error, nullptr);
  }
}

std::vector<std::unique_ptr<Link>> GroupAcceptor::gather(Deadline deadline) {
  const Deadline close = close_of_step(deadline);
  Deadline look = steady_clock::now();
  while (!missing().empty()) {
    std::vector<int> descriptors;
    for (const auto& member : members_) {
      if (member) descriptors.push_back(member->socket().descriptor());
    }
    if (options_.cancellation) descriptors.push_back(options_.cancellation->token().descriptor());
    for (Authenticated& peer : acceptor_.wait(descriptors, close)) admit(peer);
    check_cancelled(look);
    drop_disconnected();
    if (notes_.size() > kNotes) notes_.erase(notes_.begin(), notes_.end() - kNotes);
    turned_away_ = acceptor_.turned_away();
    turned_away_.insert(turned_away_.end(), notes_.begin(), notes_.end());
    if (steady_clock::now() >= close && !missing().empty()) {
      std::string text = fmt::format("{} of {} did not come until the deadline; rank 0 listens at {}",
                                     list_ranks(missing()), size_, place_.text());
      if (place_.is_loopback()) text += ", a loopback address: this machine alone reaches it, by no other address";
      for (const std::string& line : turned_away_) text += "; " + line;
      fail({ErrorCode::kTimeout, text}, nullptr);
    }
  }
  return {std::make_move_iterator(members_.begin()), std::make_move_iterator(members_.end())};
}

}  // namespace sparsecast
