// SPDX-License-Identifier: Apache-2.0
#include "sync/vote.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

constexpr std::size_t kMostText = 400;

struct Fixed {
  std::int32_t status = 0;
  std::uint32_t promised = 0;
  StateDigest reached;
};

/// Beginning of the result of a count; the message of a failure follows.
struct Count {
  std::int32_t status = 0;  ///< 0 for a success, or the ErrorCode of a failure.
  std::uint32_t reserved = 0;
  StateDigest digest;  ///< Digest of all tensors, in a success.
};

/// Throws for a failure of another rank: the rank where it began, in preference to ranks that only heard of it.
void require_success(const Voters& voters, const std::vector<Vote>& votes) {
  const auto failed = [](const Vote& vote) { return vote.status != 0; };
  const auto began = [](const Vote& vote) {
    return vote.status != 0 && vote.status != static_cast<int>(ErrorCode::kPeerFailed);
  };
  auto found = std::ranges::find_if(votes, began);
  if (found == votes.end()) found = std::ranges::find_if(votes, failed);
  if (found == votes.end()) return;
  throw Error(ErrorCode::kPeerFailed,
              fmt::format("{} failed: {} [{}]", voters.name_of(static_cast<int>(found - votes.begin())), found->text,
                          to_string(static_cast<ErrorCode>(found->status))));
}

/// Returns the digest of all tensors; throws as read_count does.
StateDigest total_digest(const Voters& voters, const std::vector<Bytes>& packed) {
  std::vector<Vote> votes;
  for (std::size_t r = 0; r < packed.size(); ++r) {
    votes.push_back(parse_vote(packed[r], voters.name_of(static_cast<int>(r))));
  }
  require_success(voters, votes);
  return voters.add_up ? voters.add_up(votes) : StateDigest{};
}

}  // namespace

Bytes pack_vote(const Vote& vote) {
  const Fixed fixed{vote.status, static_cast<std::uint32_t>(vote.promised.size()), vote.reached};
  const auto digests = std::as_bytes(std::span(vote.promised));
  const auto words = std::as_bytes(std::span(vote.text)).first(std::min(vote.text.size(), kMostText));
  Bytes out(sizeof(Fixed) + digests.size() + words.size());
  std::memcpy(out.data(), &fixed, sizeof(Fixed));
  std::ranges::copy(digests, out.begin() + sizeof(Fixed));
  std::ranges::copy(words, out.end() - static_cast<std::ptrdiff_t>(words.size()));
  return out;
}

Vote parse_vote(ConstBytes bytes, const std::string& peer) {
  Fixed fixed;
  if (bytes.size() < sizeof(Fixed)) throw Error(ErrorCode::kCorrupt, "its vote is cut off", peer);
  std::memcpy(&fixed, bytes.data(), sizeof(Fixed));
  bytes = bytes.subspan(sizeof(Fixed));
  const std::size_t digests = fixed.promised * sizeof(StateDigest);
  if (digests > bytes.size() || bytes.size() - digests > kMostText) {
    throw Error(ErrorCode::kCorrupt, fmt::format("its vote of {} digests has {} bytes", fixed.promised, bytes.size()),
                peer);
  }
  Vote vote;
  vote.status = fixed.status;
  vote.reached = fixed.reached;
  vote.promised.resize(fixed.promised);
  std::ranges::copy(bytes.first(digests), std::as_writable_bytes(std::span(vote.promised)).begin());
  const ConstBytes text = bytes.subspan(digests);
  vote.text.assign(reinterpret_cast<const char*>(text.data()), text.size());
  return vote;
}

Voters ranks_of(ControlChannel& control, int coordinator) {
  return {&control, coordinator, [](int rank) { return fmt::format("rank {}", rank); }, nullptr};
}

Bytes count_votes(const Voters& voters, const std::vector<Bytes>& packed) {
  Count count;
  std::string words;
  try {
    count.digest = total_digest(voters, packed);
  } catch (const Error& error) {
    count.status = static_cast<std::int32_t>(error.code());
    words = error.what();
  }
  Bytes out(sizeof(Count) + words.size());
  std::memcpy(out.data(), &count, sizeof(Count));
  std::ranges::copy(std::as_bytes(std::span(words)), out.begin() + sizeof(Count));
  return out;
}

StateDigest read_count(ConstBytes bytes) {
  Count count;
  if (bytes.size() < sizeof(Count)) throw Error(ErrorCode::kCorrupt, "the count of the votes is cut off");
  std::memcpy(&count, bytes.data(), sizeof(Count));
  if (count.status == 0) return count.digest;
  const ConstBytes words = bytes.subspan(sizeof(Count));
  throw Error(static_cast<ErrorCode>(count.status),
              std::string(reinterpret_cast<const char*>(words.data()), words.size()));
}

void require_all(const Voters& voters, const Outcome& own, Deadline deadline) {
  const int worst = voters.control->agree(own.status(), voters.coordinator, deadline);
  if (worst == 0) return;
  exchange_votes(voters, {}, own, deadline);
  throw Error(ErrorCode::kPeerFailed,
              fmt::format("a rank failed, and does not say why: {}", to_string(static_cast<ErrorCode>(worst))));
}

StateDigest exchange_votes(const Voters& voters, Vote vote, const Outcome& own, Deadline deadline) {
  vote.status = own.status();
  vote.text = own.text();
  const Bytes count = voters.control->reduce(
      pack_vote(vote), [&](const std::vector<Bytes>& packed) { return count_votes(voters, packed); }, deadline);
  own.rethrow();
  return read_count(count);
}

void decide(const Voters& voters, Deadline deadline) {
  const int decision = voters.control->agree(0, voters.coordinator, deadline);
  if (decision == 0) return;
  throw Error(ErrorCode::kPeerFailed,
              fmt::format("a rank voted against: {}", to_string(static_cast<ErrorCode>(decision))));
}

}  // namespace sparsecast
