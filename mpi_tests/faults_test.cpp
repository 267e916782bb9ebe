// SPDX-License-Identifier: Apache-2.0

// Syncs in which one rank refuses: all ranks stay at the old version and say why, and the next sync repairs it.

#include "member.hpp"

namespace sparsecast::mpi_test {
namespace {

/// Expects that the refusing rank throws its own error, all others kPeerFailed naming it, and that nothing has changed.
void expect_refused(Case& running, Member& member, const Outcome& outcome, int refusing, ErrorCode code,
                    std::uint64_t version) {
  if (member.rank() == refusing) {
    running.expect_error(outcome, code, "", "sync on the refusing rank");
  } else {
    running.expect_error(outcome, ErrorCode::kPeerFailed, std::string(to_string(code)), "sync");
  }
  running.expect_equal(member.version(), version, "version after the error");
}

void wrong_base(Case& running) {
  Member member(running, {});
  if (member.is_source()) member.model().train();
  expect_synchronised(running, member, member.sync(), 1);
  const int bad = member.last();
  if (member.rank() == bad) {
    // The weight is wrong, and the subscriber believes that it is right: as after a restart from a wrong checkpoint.
    member.replica()[0][10] ^= std::byte{0x40};
    SubscriberOptions options;
    options.version = 1;
    member.subscriber() = Subscriber(member.model().table(),
                                     refs_to(*member.model().table(), test::tensor_views(member.replica())), options);
  }
  running.expect_equal(member.wrong(), 1U, "wrong weights before");
  if (member.is_source()) member.model().train();
  expect_refused(running, member, member.sync(), bad, ErrorCode::kWrongBase, 1);
  running.expect_equal(member.wrong(), 1U, "wrong weights after the error");
  member.repair(bad);
  if (member.is_source()) member.model().train();
  expect_synchronised(running, member, member.sync(), 3);
}
const Registration kWrongBase{"wrong_base", wrong_base};

void corrupted_frame(Case& running) {
  Member member(running, {});
  if (member.is_source()) member.model().train();
  expect_synchronised(running, member, member.sync(), 1);
  const int victim = member.last();
  bool inject = member.rank() == victim;
  Faults faults;
  faults.receive = [&](std::vector<Bytes>& records) {
    if (inject) records[1][records[1].size() / 2] ^= std::byte{4};
  };
  member.open(std::move(faults));
  if (member.is_source()) member.model().train();
  expect_refused(running, member, member.sync(), victim, ErrorCode::kCorrupt, 1);
  running.expect_equal(member.wrong(), 0U, "wrong weights after the error");
  inject = false;
  expect_synchronised(running, member, member.sync(), 3);
  running.expect(member.report().changed > 0, "the refused changes arrived");
}
const Registration kCorruptedFrame{"corrupted_frame", corrupted_frame};

void failed_apply(Case& running) {
  Member member(running, {});
  const int victim = member.last();
  const auto alter = [&] {
    for (std::byte& byte : member.replica()[0]) byte ^= std::byte{0x20};
  };
  bool inject = member.rank() == victim;
  Faults faults;
  faults.before_vote = [&](int vote) {
    if (inject && vote == 1) alter();
  };
  member.open(std::move(faults));
  if (member.is_source()) member.model().train();
  const Outcome outcome = member.sync();
  expect_refused(running, member, outcome, victim, ErrorCode::kDigestMismatch, 0);
  if (!member.is_source() && member.rank() != victim) {
    running.expect_error(outcome, ErrorCode::kPeerFailed, "rolled back", "sync on a rank that had applied");
  }
  if (inject) alter();
  inject = false;
  running.expect_equal(member.wrong(), 0U, "wrong weights after the undo");
  expect_synchronised(running, member, member.sync(), 2);
}
const Registration kFailedApply{"failed_apply", failed_apply};

void too_much(Case& running) {
  running.ends_by_abort();
  MemberOptions options;
  if (running.rank() != 0) options.limits.max_bytes = 1000;
  Member member(running, options);
  if (member.is_source()) member.model().train();
  const Outcome outcome = member.sync();
  // Whoever waits in MPI hears of it at once.
  running.expect(outcome.text().find("over the limit of 1000") != std::string::npos, outcome.text());
  running.expect_error(member.sync(std::chrono::seconds(60)), ErrorCode::kPeerFailed, "broken", "next sync");
  running.expect_equal(member.wrong(), 0U, "wrong weights");
}
const Registration kTooMuch{"too_much", too_much};

}  // namespace
}  // namespace sparsecast::mpi_test
