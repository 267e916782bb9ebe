#include "sharded/vote.hpp"

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

/// Throws for a failure of others: rather the one that began it than those that only heard of it.
void require_success(const Meeting& meeting, const std::vector<Ballot>& ballots) {
  const auto failed = [](const Ballot& ballot) { return ballot.status != 0; };
  const auto began = [](const Ballot& ballot) {
    return ballot.status != 0 && ballot.status != static_cast<int>(ErrorCode::kPeerFailed);
  };
  auto found = std::ranges::find_if(ballots, began);
  if (found == ballots.end()) found = std::ranges::find_if(ballots, failed);
  if (found == ballots.end()) return;
  throw Error(ErrorCode::kPeerFailed,
              fmt::format("{} failed: {} [{}]", meeting.name_of(static_cast<int>(found - ballots.begin())), found->text,
                          to_string(static_cast<ErrorCode>(found->status))));
}

/// By engine, then of all tensors.
std::vector<StateDigest> add_promises(const Meeting& meeting, const std::vector<Ballot>& ballots) {
  std::vector<StateDigest> total(meeting.engines.size() + 1);
  for (const int r : meeting.trainer.group.ranks) {
    const Ballot& ballot = ballots[static_cast<std::size_t>(r)];
    if (ballot.promised.size() != total.size()) {
      throw Error(ErrorCode::kCorrupt, fmt::format("{} digests where {} belong", ballot.promised.size(), total.size()),
                  meeting.name_of(r));
    }
    for (std::size_t e = 0; e < total.size(); ++e) total[e] += ballot.promised[e];
  }
  return total;
}

}  // namespace

Bytes pack_ballot(const Ballot& ballot) {
  const Fixed fixed{ballot.status, static_cast<std::uint32_t>(ballot.promised.size()), ballot.reached};
  const auto digests = std::as_bytes(std::span(ballot.promised));
  const auto words = std::as_bytes(std::span(ballot.text)).first(std::min(ballot.text.size(), kMostText));
  Bytes out(sizeof(Fixed) + digests.size() + words.size());
  std::memcpy(out.data(), &fixed, sizeof(Fixed));
  std::ranges::copy(digests, out.begin() + sizeof(Fixed));
  std::ranges::copy(words, out.end() - static_cast<std::ptrdiff_t>(words.size()));
  return out;
}

Ballot parse_ballot(ConstBytes bytes, const std::string& peer) {
  Fixed fixed;
  if (bytes.size() < sizeof(Fixed)) throw Error(ErrorCode::kCorrupt, "its ballot is cut off", peer);
  std::memcpy(&fixed, bytes.data(), sizeof(Fixed));
  bytes = bytes.subspan(sizeof(Fixed));
  const std::size_t digests = fixed.promised * sizeof(StateDigest);
  if (digests > bytes.size() || bytes.size() - digests > kMostText) {
    throw Error(ErrorCode::kCorrupt, fmt::format("its ballot of {} digests has {} bytes", fixed.promised, bytes.size()),
                peer);
  }
  Ballot ballot;
  ballot.status = fixed.status;
  ballot.reached = fixed.reached;
  ballot.promised.resize(fixed.promised);
  std::ranges::copy(bytes.first(digests), std::as_writable_bytes(std::span(ballot.promised)).begin());
  const ConstBytes text = bytes.subspan(digests);
  ballot.text.assign(reinterpret_cast<const char*>(text.data()), text.size());
  return ballot;
}

StateDigest exchange_ballots(ControlChannel& world, const Meeting& meeting, Ballot ballot, const Outcome& own,
                             Deadline deadline) {
  ballot.status = own.status();
  ballot.text = own.text();
  const std::vector<Bytes> all = world.all_gather(pack_ballot(ballot), deadline);
  own.rethrow();
  std::vector<Ballot> ballots;
  for (std::size_t r = 0; r < all.size(); ++r) {
    ballots.push_back(parse_ballot(all[r], meeting.name_of(static_cast<int>(r))));
  }
  require_success(meeting, ballots);
  const std::vector<StateDigest> promised = add_promises(meeting, ballots);
  std::string differing;
  for (std::size_t e = 0; e < meeting.engines.size(); ++e) {
    const FanoutGroup& engine = meeting.engines[e].group;
    StateDigest reached;
    for (const int r : engine.ranks) reached += ballots[static_cast<std::size_t>(r)].reached;
    if (reached == promised[e]) continue;
    differing += fmt::format("{}engine '{}' holds {}, not {}", differing.empty() ? "" : "; ", engine.name,
                             to_hex(reached.value), to_hex(promised[e].value));
  }
  if (!differing.empty()) throw Error(ErrorCode::kDigestMismatch, differing);
  return promised.back();
}

}  // namespace sparsecast
