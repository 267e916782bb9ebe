// SPDX-License-Identifier: Apache-2.0

// Tests with a dead rank: it makes no call, not even into MPI, until the survivors have returned with an error, so that
// a hang of a survivor is a hang of the test. Afterwards the rank is alive again, and a new channel carries the next
// version.

#include "member.hpp"
#include "shared_counter.hpp"

namespace sparsecast::mpi_test {
namespace {

constexpr std::chrono::seconds kTimeout{2};

/// Returns a timeout that is longer on receivers than on the source, so that its message about the silent rank reaches
/// them on a busy machine too.
std::chrono::seconds timeout_of(const Member& member) { return member.is_source() ? kTimeout : 2 * kTimeout; }

/// Runs one sync without `dead`; `check` checks the results of the survivors.
template <class Check>
void survive(Case& running, Member& member, SharedCounter& finished, int dead, const Check& check) {
  if (member.rank() == dead) {
    finished.wait_for(running.size() - 1);
    member.drop();
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  const Outcome outcome = member.sync(timeout_of(member));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  running.note(fmt::format("after {:.3f} s of {}: {}", seconds, timeout_of(member).count(), outcome.text()));
  check(outcome);
  running.expect_error(member.sync(), ErrorCode::kPeerFailed, "broken", "next sync on the broken channel");
  member.drop();
  finished.add_one();
}

/// Expects that nothing has changed, and that a new channel works.
void expect_recovery(Case& running, Member& member, std::uint64_t version, std::uint64_t next) {
  running.expect_equal(member.version(), version, "version after the failure");
  running.expect_equal(member.wrong(), 0U, "wrong weights after the failure");
  member.open();
  expect_synchronised(running, member, member.sync(), next);
}

void lose_receiver(Case& running, const MemberOptions& options) {
  running.ends_by_abort();
  SharedCounter finished;
  Member member(running, options);
  const int dead = member.last();
  if (member.is_source()) member.model().jump();
  survive(running, member, finished, dead, [&](const Outcome& outcome) {
    // The source waits in vain, and tells the others whom it has waited for.
    running.expect_error(outcome, member.is_source() ? ErrorCode::kTimeout : ErrorCode::kPeerFailed,
                         fmt::format("rank {}", dead), "sync");
  });
  // One attempt on the channel that failed, one on the channel that was broken.
  expect_recovery(running, member, 0, 3);
}

void dead_receiver(Case& running) { lose_receiver(running, {}); }
const Registration kDeadReceiver{"dead_receiver", dead_receiver};

void dead_receiver_of_large_frames(Case& running) {
  MemberOptions options;
  options.width = 700;
  options.encode.values = ValueCodec::kRaw;
  lose_receiver(running, options);
}
const Registration kDeadLarge{"dead_receiver_of_large_frames", dead_receiver_of_large_frames};

void dead_after_staging(Case& running) {
  running.ends_by_abort();
  SharedCounter finished;
  Member member(running, {});
  const int dead = member.last();
  Faults faults;
  faults.before_vote = [&](int vote) {
    if (vote != 2 || member.rank() != dead) return;
    finished.wait_for(running.size() - 1);
    throw Error(ErrorCode::kUsage, "this rank was dead");
  };
  member.open(std::move(faults));
  if (member.is_source()) member.model().train();
  const Outcome outcome = member.sync(timeout_of(member));
  if (member.rank() == dead) {
    running.expect_error(outcome, ErrorCode::kUsage, "this rank was dead", "sync");
  } else {
    running.expect_error(outcome, ErrorCode::kTimeout, fmt::format("rank {}", dead), "sync");
    if (!member.is_source()) running.expect_error(outcome, ErrorCode::kTimeout, "rolled back", "sync on a receiver");
    finished.add_one();
  }
  expect_recovery(running, member, 0, 2);
}
const Registration kDeadAfterStaging{"dead_after_staging", dead_after_staging};

void dead_source(Case& running) {
  running.ends_by_abort();
  SharedCounter finished;
  Member member(running, {});
  if (member.is_source()) member.model().train();
  survive(running, member, finished, 0, [&](const Outcome& outcome) {
    running.expect_error(outcome, ErrorCode::kTimeout, "the size table from rank 0", "sync");
  });
  expect_recovery(running, member, 0, 1);
}
const Registration kDeadSource{"dead_source", dead_source};

}  // namespace
}  // namespace sparsecast::mpi_test
