// Syncs in which a rank refuses: all ranks stay at the old version and say why, and the next sync repairs it.

#include "party.hpp"

namespace sparsecast::mpi_test {
namespace {

/// The refusing rank throws its own error, all others kPeerFailed that names it; nothing has moved.
void expect_refused(Case& running, Party& party, const Outcome& outcome, int refusing, ErrorCode code,
                    std::uint64_t version) {
  if (party.rank() == refusing) {
    running.expect_error(outcome, code, "", "sync on the refusing rank");
  } else {
    running.expect_error(outcome, ErrorCode::kPeerFailed, std::string(to_string(code)), "sync");
  }
  running.expect_equal(party.version(), version, "version after the refusal");
}

void wrong_base(Case& running) {
  Party party(running, {});
  if (party.is_source()) party.model().train();
  expect_synchronised(running, party, party.sync(), 1);
  const int bad = party.last();
  if (party.rank() == bad) {
    // Another weight, and a subscriber that believes it is right: as after a restart from a wrong checkpoint.
    party.replica()[0][10] ^= std::byte{0x40};
    SubscriberOptions options;
    options.version = 1;
    party.subscriber() = Subscriber(party.model().table(), test::tensor_views(party.replica()), options);
  }
  running.expect_equal(party.wrong(), 1U, "wrong weights before");
  if (party.is_source()) party.model().train();
  expect_refused(running, party, party.sync(), bad, ErrorCode::kWrongBase, 1);
  running.expect_equal(party.wrong(), 1U, "wrong weights after the refusal");
  party.repair(bad);
  if (party.is_source()) party.model().train();
  expect_synchronised(running, party, party.sync(), 3);
}
const Registration kWrongBase{"wrong_base", wrong_base};

void corrupted_frame(Case& running) {
  Party party(running, {});
  if (party.is_source()) party.model().train();
  expect_synchronised(running, party, party.sync(), 1);
  const int victim = party.last();
  bool inject = party.rank() == victim;
  Faults faults;
  faults.receive = [&](std::vector<Bytes>& records) {
    if (inject) records[1][records[1].size() / 2] ^= std::byte{4};
  };
  party.open(std::move(faults));
  if (party.is_source()) party.model().train();
  expect_refused(running, party, party.sync(), victim, ErrorCode::kCorrupt, 1);
  running.expect_equal(party.wrong(), 0U, "wrong weights after the refusal");
  inject = false;
  expect_synchronised(running, party, party.sync(), 3);
  running.expect(party.report().changed > 0, "the refused changes arrived");
}
const Registration kCorruptedFrame{"corrupted_frame", corrupted_frame};

void failed_apply(Case& running) {
  Party party(running, {});
  const int victim = party.last();
  const auto alter = [&] {
    for (std::byte& byte : party.replica()[0]) byte ^= std::byte{0x20};
  };
  bool inject = party.rank() == victim;
  Faults faults;
  faults.before_vote = [&](int vote) {
    if (inject && vote == 1) alter();
  };
  party.open(std::move(faults));
  if (party.is_source()) party.model().train();
  const Outcome outcome = party.sync();
  expect_refused(running, party, outcome, victim, ErrorCode::kDigestMismatch, 0);
  if (!party.is_source() && party.rank() != victim) {
    running.expect_error(outcome, ErrorCode::kPeerFailed, "taken back", "sync on a rank that had applied");
  }
  if (inject) alter();
  inject = false;
  running.expect_equal(party.wrong(), 0U, "wrong weights after the undo");
  expect_synchronised(running, party, party.sync(), 2);
}
const Registration kFailedApply{"failed_apply", failed_apply};

void too_much(Case& running) {
  running.ends_by_abort();
  PartyOptions options;
  if (running.rank() != 0) options.limits.max_bytes = 1000;
  Party party(running, options);
  if (party.is_source()) party.model().train();
  const Outcome outcome = party.sync(std::chrono::seconds(3));
  if (party.is_source()) {
    running.expect_error(outcome, ErrorCode::kTimeout, "no vote from rank", "sync");
  } else {
    running.expect_error(outcome, ErrorCode::kCorrupt, "over the limit of 1000", "sync");
  }
  running.expect_error(party.sync(std::chrono::seconds(60)), ErrorCode::kPeerFailed, "broken", "next sync");
  running.expect_equal(party.wrong(), 0U, "wrong weights");
}
const Registration kTooMuch{"too_much", too_much};

}  // namespace
}  // namespace sparsecast::mpi_test
