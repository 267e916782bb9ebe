// SPDX-License-Identifier: Apache-2.0
#include "transport/control/star_group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "transport/control/blobs.hpp"

namespace sparsecast {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr std::uint64_t kSmallestBound = 4096;
constexpr std::size_t kMostNamed = 20;  ///< Most ranks named in one error.

struct AgreeVote {
  std::int32_t status = 0;
  std::int32_t coordinator = 0;
};

}  // namespace

Deadline close_of_step(Deadline deadline) {
  const auto left = deadline - steady_clock::now();
  return deadline - std::clamp<steady_clock::duration>(left / 8, steady_clock::duration::zero(), milliseconds(500));
}

StarGroup::StarGroup(std::string who, int rank, int size, std::uint64_t max_blob_bytes, bool any_thread)
    : who_(std::move(who)), rank_(rank), size_(size), max_blob_bytes_(max_blob_bytes), token_(any_thread) {}

void StarGroup::connect_members(std::vector<std::unique_ptr<Link>> members) {
  members_ = std::move(members);
  for (const auto& member : members_) {
    if (member) member->set_cancellation(token_);
  }
}

void StarGroup::connect_hub(std::unique_ptr<Link> hub) {
  hub_ = std::move(hub);
  hub_->set_cancellation(token_);
}

StarGroup::~StarGroup() {
  if (!broken_ || !token_.process().is_here()) return;
  const Deadline soon = steady_clock::now() + kLingerTimeout;
  if (hub_) hub_->linger(soon);
  for (const auto& member : members_) {
    if (member) member->linger(soon);
  }
}

std::uint64_t StarGroup::max_body_bytes() const noexcept {
  const std::uint64_t part = std::max(max_blob_bytes_, kSmallestBound);
  return rank_ == 0 ? part : part + static_cast<std::uint64_t>(size_) * (max_blob_bytes_ + 8);
}

std::string StarGroup::context(const char* phase) const {
  return fmt::format("{}, rank {} of {}: {}", who_, rank_, size_, phase);
}

void StarGroup::tell_all(MessageType type, std::span<const std::byte> body, Deadline deadline) {
  std::exception_ptr first;
  const auto send = [&](Link* peer) {
    try {
      if (peer != nullptr) peer->send(type, body, deadline);
    } catch (const Error&) {
      if (!first) first = std::current_exception();
    }
  };
  send(hub_.get());
  for (const auto& member : members_) send(member.get());
  if (first && type != MessageType::kAbort) std::rethrow_exception(first);
}

void StarGroup::break_with(const Error& error) noexcept {
  token_.mark_handled();
  token_.suspend();  // The peers must still get the reason.
  if (broken_) return;
  try {
    broken_ = error.what();
    tell_all(MessageType::kAbort, abort_body(error), steady_clock::now() + kLingerTimeout);
  } catch (...) {
    if (!broken_) broken_ = "out of memory";
  }
}

void StarGroup::leave() noexcept {
  try {
    while (const std::optional<std::string> reason = token_.end_call())
      break_with(Error(ErrorCode::kPeerFailed, *reason));
  } catch (...) {
    token_.mark_handled();
    if (!broken_) broken_ = "out of memory";
    leave();
  }
}

template <class Body>
auto StarGroup::guard(const char* phase, const Body& body) {
  token_.process().require_here(context(phase));
  if (!token_.begin_call()) {
    throw Error(ErrorCode::kUsage, "another thread is in a call of this channel", context(phase));
  }
  const CallScope scope{*this};
  if (broken_) {
    throw Error(ErrorCode::kPeerFailed, fmt::format("the channel is broken since an earlier failure ({})", *broken_),
                context(phase));
  }
  try {
    token_.check();
    return body();
  } catch (const Error& error) {
    break_with(error);
    throw error.within(context(phase));
  }
}

Bytes StarGroup::expect(Link& peer, MessageType type, Deadline deadline,
                        std::span<const std::unique_ptr<Link>> others) {
  ControlMessage message = peer.receive(deadline, others);
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

std::vector<Bytes> StarGroup::collect(MessageType type, Deadline deadline) {
  std::vector<Bytes> bodies(static_cast<std::size_t>(size_));
  std::vector<int> silent;
  for (int r = 1; r < size_; ++r) {
    try {
      bodies[static_cast<std::size_t>(r)] = expect(*members_[static_cast<std::size_t>(r)], type, deadline, members_);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kTimeout) throw;
      silent.push_back(r);
    }
  }
  if (silent.empty()) return bodies;
  std::string names;
  for (std::size_t i = 0; i < std::min(silent.size(), kMostNamed); ++i) {
    names += (i == 0 ? "" : ", ") + members_[static_cast<std::size_t>(silent[i])]->name();
  }
  if (silent.size() > kMostNamed) names += fmt::format(" and {} more", silent.size() - kMostNamed);
  throw Error(ErrorCode::kTimeout, fmt::format("silent until the deadline: {}", names));
}

std::vector<Bytes> StarGroup::collect_blobs(MessageType type, std::span<const std::byte> own, Deadline deadline) {
  std::vector<Bytes> blobs = collect(type, close_of_step(deadline));
  blobs[0].assign(own.begin(), own.end());
  return blobs;
}

void StarGroup::require_blob(std::span<const std::byte> own) const {
  if (own.size() <= max_blob_bytes_) return;
  throw Error(ErrorCode::kUsage,
              fmt::format("a part of {} bytes; at most {} are possible", own.size(), max_blob_bytes_));
}

std::vector<Bytes> StarGroup::all_gather(std::span<const std::byte> own, Deadline deadline) {
  return guard("all_gather", [&] {
    require_blob(own);
    if (rank_ != 0) {
      hub_->send(MessageType::kBlob, own, deadline);
      return cut_blobs(expect(*hub_, MessageType::kGathered, deadline), size_, hub_->name());
    }
    std::vector<Bytes> blobs = collect_blobs(MessageType::kBlob, own, deadline);
    tell_all(MessageType::kGathered, join_blobs(blobs), deadline);
    return blobs;
  });
}

Bytes StarGroup::reduce(std::span<const std::byte> own, const ControlChannel::Combine& combine, Deadline deadline) {
  return guard("reduce", [&] {
    require_blob(own);
    if (rank_ != 0) {
      hub_->send(MessageType::kReduce, own, deadline);
      return expect(*hub_, MessageType::kReduce, deadline);
    }
    Bytes result = combine(collect_blobs(MessageType::kReduce, own, deadline));
    tell_all(MessageType::kReduce, result, deadline);
    return result;
  });
}

Bytes StarGroup::broadcast(std::span<const std::byte> own, Deadline deadline) {
  return guard("broadcast", [&] {
    if (rank_ != 0) return expect(*hub_, MessageType::kBroadcast, deadline);
    if (own.size() > max_blob_bytes_) {
      throw Error(ErrorCode::kUsage, fmt::format("{} bytes; at most {} are possible", own.size(), max_blob_bytes_));
    }
    tell_all(MessageType::kBroadcast, own, deadline);
    return Bytes(own.begin(), own.end());
  });
}

/// Sends the decision to every member. A decision is final: if it cannot be delivered, the channel breaks, but the call
/// that decided succeeds.
void StarGroup::deliver_decision(std::int32_t worst, int decided_by, Deadline deadline) {
  token_.suspend();
  for (int r = 1; r < size_; ++r) {
    if (r == decided_by) continue;
    try {
      members_[static_cast<std::size_t>(r)]->send(MessageType::kDecision, bytes_of(worst), deadline);
    } catch (const Error& error) {
      broken_ = fmt::format("the decision could not be delivered: {}", error.what());
    }
  }
  token_.resume();
}

int StarGroup::agree_as_hub(int status, int coordinator, Deadline deadline) {
  const std::vector<Bytes> bodies = collect(MessageType::kVote, close_of_step(deadline));
  AgreeVote worst{status, coordinator};
  for (int r = 1; r < size_; ++r) {
    const Link& member = *members_[static_cast<std::size_t>(r)];
    const AgreeVote vote = value_of<AgreeVote>(bodies[static_cast<std::size_t>(r)], member.name());
    if (vote.coordinator != coordinator) {
      throw Error(ErrorCode::kGroupMismatch,
                  fmt::format("takes rank {} for the coordinator, this rank takes {}", vote.coordinator, coordinator),
                  member.name());
    }
    worst.status = std::max(worst.status, vote.status);
  }
  std::int32_t decision = worst.status;
  if (coordinator != 0) {
    Link& decider = *members_[static_cast<std::size_t>(coordinator)];
    decider.send(MessageType::kVote, bytes_of(worst), deadline);
    decision = value_of<std::int32_t>(expect(decider, MessageType::kDecision, deadline, members_), decider.name());
  }
  deliver_decision(decision, coordinator, deadline);
  return decision;
}

int StarGroup::agree_as_member(int status, int coordinator, Deadline deadline) {
  const AgreeVote vote{status, coordinator};
  hub_->send(MessageType::kVote, bytes_of(vote), deadline);
  if (rank_ != coordinator) {
    return value_of<std::int32_t>(expect(*hub_, MessageType::kDecision, deadline), hub_->name());
  }
  const auto worst = value_of<AgreeVote>(expect(*hub_, MessageType::kVote, deadline), hub_->name());
  token_.suspend();
  try {
    hub_->send(MessageType::kDecision, bytes_of(worst.status), deadline);
  } catch (const Error& error) {
    broken_ = fmt::format("the decision could not be delivered: {}", error.what());
  }
  token_.resume();
  return worst.status;
}

int StarGroup::agree(int status, int coordinator, Deadline deadline) {
  return guard("agree", [&] {
    if (coordinator < 0 || coordinator >= size_) {
      throw Error(ErrorCode::kUsage, fmt::format("coordinator {} of {} ranks", coordinator, size_));
    }
    return rank_ == 0 ? agree_as_hub(status, coordinator, deadline) : agree_as_member(status, coordinator, deadline);
  });
}

void StarGroup::abort(const std::string& reason) noexcept {
  try {
    if (token_.request_cancel(reason)) leave();
  } catch (...) {
  }
}

void StarGroup::send_close(Deadline deadline) noexcept {
  if (!token_.begin_call()) return;
  const CallScope scope{*this};
  if (broken_) return;
  try {
    tell_all(MessageType::kLeave, {}, deadline);
  } catch (const Error&) {
  }
}

void StarGroup::settle_abort() noexcept {
  if (token_.begin_short_call()) leave();
}

std::optional<std::string> StarGroup::aborted() noexcept {
  try {
    if (!token_.process().is_here()) return "it belongs to the parent of this process";
    if (!token_.begin_short_call()) return token_.cancel_reason();
    const CallScope scope{*this};
    if (broken_) return broken_;
    std::optional<std::string> why = token_.cancel_reason();
    if (hub_ && !why) why = hub_->given_up();
    for (const auto& member : members_) {
      if (member && !why) why = member->given_up();
    }
    if (why) break_with(Error(ErrorCode::kPeerFailed, *why));
    return why;
  } catch (...) {
    return "out of memory";
  }
}

std::vector<int> ranks_of_color(const std::vector<SplitChoice>& choices, int color) {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < choices.size(); ++r) {
    if (choices[r].color == color) ranks.push_back(static_cast<int>(r));
  }
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    return choices[static_cast<std::size_t>(a)].key < choices[static_cast<std::size_t>(b)].key;
  });
  return ranks;
}

std::shared_ptr<ControlChannel> ChildChannels::add(std::shared_ptr<ControlChannel> part) {
  std::optional<std::string> reason;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(parts_, [](const auto& known) { return known.expired(); });
    parts_.push_back(part);
    reason = reason_;
  }
  if (reason) part->abort(*reason);
  return part;
}

void ChildChannels::abort(const std::string& reason) noexcept {
  try {
    std::vector<std::shared_ptr<ControlChannel>> parts;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!reason_) reason_ = reason;
      for (const auto& known : parts_) {
        if (auto part = known.lock()) parts.push_back(std::move(part));
      }
    }
    for (const auto& part : parts) part->abort(reason);
  } catch (...) {
  }
}

}  // namespace sparsecast
