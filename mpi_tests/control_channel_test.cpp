// SPDX-License-Identifier: Apache-2.0

// The control channel over MPI: all of ControlChannel, parts of it, and ranks that are silent or give up.

#include <thread>

#include "harness.hpp"
#include "sparsecast/mpi_transport.hpp"
#include "sparsecast/tcp_transport.hpp"

namespace sparsecast::mpi_test {
namespace {

using namespace std::chrono_literals;

Deadline in(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }

Bytes blob_of(int rank, std::size_t bytes) { return Bytes(bytes, static_cast<std::byte>(rank + 1)); }

/// Polls as a rank does that waits for something else.
std::optional<std::string> news_of_failure(ControlChannel& channel) {
  std::optional<std::string> why;
  for (const Deadline deadline = in(30s); !why && std::chrono::steady_clock::now() < deadline;) {
    why = channel.aborted();
    std::this_thread::sleep_for(1ms);
  }
  return why;
}

void control_channel(Case& running) {
  const auto channel = make_mpi_control_channel();
  running.expect_equal(channel->rank(), running.rank(), "rank");
  running.expect_equal(channel->size(), running.size(), "size");
  const int last = running.size() - 1;
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{5000}, std::size_t{1} << 20}) {
    // Parts of different lengths; the last rank has the longest.
    const auto all = channel->all_gather(blob_of(running.rank(), running.rank() == last ? bytes : bytes / 2), in(60s));
    for (int r = 0; r <= last; ++r) {
      running.expect(all[static_cast<std::size_t>(r)] == blob_of(r, r == last ? bytes : bytes / 2), "the part");
    }
    running.expect(channel->broadcast(blob_of(running.rank(), bytes), in(60s)) == blob_of(0, bytes), "rank 0's bytes");
    // Each rank's byte, if all parts are whole.
    const auto combine = [bytes](const std::vector<Bytes>& parts) {
      Bytes firsts;
      for (std::size_t r = 0; r < parts.size(); ++r) {
        const Bytes whole = blob_of(static_cast<int>(r), bytes);
        if (parts[r] == whole && !whole.empty()) firsts.push_back(whole.front());
      }
      return firsts;
    };
    std::vector<Bytes> parts;
    for (int r = 0; r <= last; ++r) parts.push_back(blob_of(r, bytes));
    running.expect(channel->reduce(blob_of(running.rank(), bytes), combine, in(60s)) == combine(parts),
                   "the reduction");
  }
  for (int coordinator = 0; coordinator <= last; ++coordinator) {
    running.expect_equal(channel->agree(running.rank(), coordinator, in(60s)), last, "the worst status");
  }
  running.expect(!channel->aborted().has_value(), "nobody has given up");
}
const Registration kControl{"control_channel", control_channel};

void control_parts(Case& running) {
  const auto channel = make_mpi_control_channel();
  // Even ranks in reverse, odd ones in order; the last rank takes no part.
  const bool out = running.rank() == running.size() - 1;
  const int color = out ? -1 : running.rank() % 2;
  for (int round = 0; round < 3; ++round) {
    const auto part = channel->split(color, color == 0 ? -running.rank() : running.rank(), in(60s));
    running.expect_equal(part == nullptr, out, "no part");
    if (part) {
      const auto all = part->all_gather(blob_of(running.rank(), 10), in(60s));
      running.expect(all[static_cast<std::size_t>(part->rank())] == blob_of(running.rank(), 10), "own part");
      const int first = part->size() - 1;
      const int leader = color == 0 ? 2 * first : 1;
      running.expect(part->broadcast(blob_of(running.rank(), 4), in(60s)) == blob_of(leader, 4), "the leader's bytes");
      // A part of a part.
      const auto inner = part->split(0, 0, in(60s));
      running.expect_equal(inner->agree(part->rank(), inner->size() - 1, in(60s)), part->size() - 1, "agree inside");
    }
    running.expect_equal(channel->agree(0, 0, in(60s)), 0, "the whole group");
  }
}
const Registration kParts{"control_parts", control_parts};

void records_over_control(Case& running) {
  const auto transport = make_tcp_transport(make_mpi_control_channel());
  for (int source = 0; source < running.size(); ++source) {
    const std::vector<Bytes> expected = {blob_of(source, 3 << 20), {}, blob_of(source, 7)};
    std::vector<Bytes> records = running.rank() == source ? expected : std::vector<Bytes>{};
    transport->broadcast(records, source, in(60s));
    running.expect(records == expected, "the records");
    running.expect_equal(transport->control().agree(running.rank(), 0, in(60s)), running.size() - 1, "agree");
  }
}
const Registration kRecords{"records_over_control", records_over_control};

/// Another thread of a rank that waits in a call, of the channel or of a part of it.
void giving_up_beside(Case& running) {
  running.ends_by_abort();
  const auto channel = make_mpi_control_channel();
  const auto part = channel->split(0, running.rank(), in(60s));
  const int silent = running.size() - 1;
  ControlChannel& where = running.size() == 2 ? *channel : *part;
  MPI_Barrier(MPI_COMM_WORLD);
  std::string words;
  if (running.rank() == silent) {
    words = news_of_failure(where).value_or("nothing");
  } else {
    std::jthread other;
    if (running.rank() == 0) {
      other = std::jthread([&] {
        std::this_thread::sleep_for(200ms);
        channel->abort("somebody pulled the plug");
      });
    }
    try {
      where.all_gather(blob_of(running.rank(), 10), in(60s));
    } catch (const Error& error) {
      running.expect_equal(static_cast<int>(error.code()), static_cast<int>(ErrorCode::kPeerFailed), "the code");
      words = error.what();
    }
  }
  running.expect(words.find("somebody pulled the plug") != std::string::npos, "the reason, not: " + words);
}
const Registration kGivingUpBeside{"control_giving_up_beside", giving_up_beside};

/// If MPI belongs to one thread, the abort of another thread takes effect at the next call, or at the end of the
/// channel.
void giving_up_between_calls(Case& running) {
  running.ends_by_abort();
  auto channel = make_mpi_control_channel();
  MPI_Barrier(MPI_COMM_WORLD);
  if (running.rank() == 0) {
    std::jthread([&] { channel->abort("somebody pulled the plug"); }).join();
    running.expect(channel->aborted().value_or("").find("somebody pulled") != std::string::npos, "its own reason");
    channel.reset();
  } else {
    const std::string words = news_of_failure(*channel).value_or("nothing");
    running.expect(words.find("somebody pulled the plug") != std::string::npos, "the reason, not: " + words);
  }
}
const Registration kGivingUpBetween{"control_giving_up_between_calls", giving_up_between_calls};

void silent_rank(Case& running) {
  running.ends_by_abort();
  const auto channel = make_mpi_control_channel();
  const int silent = running.size() - 1;
  MPI_Barrier(MPI_COMM_WORLD);
  if (running.rank() == silent) {
    std::this_thread::sleep_for(3s);
    running.expect(news_of_failure(*channel).has_value(), "the silent rank learns of it");
    return;
  }
  const auto name = fmt::format("rank {}", silent);
  running.expect_error(outcome_of([&] { channel->all_gather({}, in(1500ms)); }), ErrorCode::kTimeout, name,
                       "all_gather without it");
  running.expect_error(outcome_of([&] { channel->agree(0, 0, in(1s)); }), ErrorCode::kPeerFailed, "broken",
                       "the next call");
}
const Registration kSilent{"control_silent_rank", silent_rank};

void giving_up(Case& running) {
  running.ends_by_abort();
  const auto channel = make_mpi_control_channel();
  channel->all_gather({}, in(60s));
  if (running.rank() == running.size() - 1) {
    channel->abort("the device burns");
    return;
  }
  const auto why = news_of_failure(*channel);
  running.expect(why && why->find("the device burns") != std::string::npos, "the reason of the rank that gave up");
}
const Registration kGivingUp{"control_giving_up", giving_up};

void different_steps(Case& running) {
  running.ends_by_abort();
  const auto channel = make_mpi_control_channel();
  const Outcome outcome = outcome_of(
      [&] { running.rank() == 0 ? void(channel->all_gather({}, in(30s))) : void(channel->agree(0, 0, in(30s))); });
  running.expect_error(outcome, ErrorCode::kGroupMismatch, "another step", "different calls");
}
const Registration kSteps{"control_different_steps", different_steps};

}  // namespace
}  // namespace sparsecast::mpi_test
