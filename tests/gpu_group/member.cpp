// SPDX-License-Identifier: Apache-2.0
#include "gpu_group/member.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "gpu_group/meeting_place.hpp"
#include "gpu_group/replica.hpp"

namespace sparsecast::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// A wait in NCCL may end so much later than the sync's timeout: the abort has a bound of its own.
constexpr milliseconds kGrace{15'000};
/// Syncs that may still succeed before the killed rank is gone.
constexpr int kMostSyncsWithVictim = 200;
constexpr int kVersionsAfterwards = 3;

std::unique_ptr<Replica> make_replica(const GroupPlan& plan, int rank) {
  if (!plan.on_device) return make_host_replica(rank, plan.seed, plan.width);
#ifdef SPARSECAST_TEST_WITH_DEVICE
  return make_device_replica(rank, plan.seed, plan.width);
#else
  throw Error(ErrorCode::kUnsupported, "built without the device backend");
#endif
}

class Member {
 public:
  Member(const GroupPlan& plan, int rank)
      : plan_(plan),
        rank_(rank),
        place_(plan, rank),
        channel_(plan.over_nccl ? make_nccl_channel() : make_control_channel()),
        replica_(make_replica(plan, rank)) {}

  void run() {
    if (plan_.late) {
      place_.wait_for_invitation();
      channel_->open(place_.meet(plan_.ranks, 2), deadline());
    } else {
      channel_->open(place_.meet(plan_.ranks, 0), deadline());
      say_how("formed");
      sync_versions(plan_.versions);
      if (!plan_.kill) return;
      lose_the_last_rank();
      channel_->reform(place_.meet(plan_.ranks - 1, 1), deadline());
      say_how("formed again");
      sync_versions(kVersionsAfterwards);
      if (rank_ == 0) place_.invite();
      channel_->reform(place_.meet(plan_.ranks, 2), deadline());
    }
    say_how("formed with a late rank");
    hand_out_an_anchor();
    sync_versions(kVersionsAfterwards);
  }
  void say(const std::string& text) const { fmt::print(stderr, "rank {}: {}\n", rank_, text); }

 private:
  Deadline deadline() const { return place_.deadline(); }
  void say_how(const char* what) const {
    if (channel_->nccl() != nullptr) say(fmt::format("{} by {}", what, channel_->nccl()->report().formed_by));
  }
  void sync_versions(int count) {
    for (int v = 0; v < count; ++v) sync_and_compare();
  }

  SyncReport sync() {
    if (rank_ == 0) replica_->train();
    return replica_->sync(*channel_, plan_.timeout);
  }

  /// One version, then the sender's weights as they are, which must be this rank's.
  void sync_and_compare() {
    const SyncReport report = sync();
    Storage own = replica_->weights();
    std::vector<Bytes> records;
    if (rank_ == 0) records.assign(own.begin(), own.end());
    channel_->transport().broadcast(records, 0, deadline());
    const std::uint64_t wrong = count_wrong(replica_->table(), own, records);
    if (report.changed == 0) throw std::runtime_error("a step changed nothing");
    if (wrong != 0) throw std::runtime_error(fmt::format("version {}: {} wrong elements", report.version, wrong));
    if (rank_ == 1)
      say(fmt::format("version {}, {} changes, {} bytes", report.version, report.changed, report.wire_bytes));
  }

  /// Sends an anchor from rank 0 to all ranks; only the late rank needs it.
  void hand_out_an_anchor() {
    AnchorHead head;
    std::vector<Bytes> records;
    if (rank_ == 0) {
      head = replica_->head();
      const auto bytes = std::as_bytes(std::span(&head, 1));
      records.emplace_back(bytes.begin(), bytes.end());
      for (const Bytes& tensor : replica_->weights()) records.push_back(tensor);
    }
    channel_->transport().broadcast(records, 0, deadline());
    if (!plan_.late) return;
    std::memcpy(&head, records.at(0).data(), sizeof(head));
    replica_->bring_up(Storage(records.begin() + 1, records.end()), head);
    say(fmt::format("brought up to version {}", head.version));
  }

  void lose_the_last_rank() {
    std::thread killer;
    if (rank_ + 1 == plan_.ranks) {
      // Somewhere within the syncs that follow; nothing of this process runs afterwards.
      killer = std::thread([this] {
        std::this_thread::sleep_for(milliseconds(5 + plan_.seed % 50));
        ::kill(getpid(), SIGKILL);
      });
      killer.detach();
    }
    for (int i = 0; i < kMostSyncsWithVictim; ++i) {
      const auto begin = Clock::now();
      try {
        sync();
      } catch (const Error& error) {
        const auto took = std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
        say(fmt::format("after {} ms: {}: {}", took.count(), to_string(error.code()), error.what()));
        if (error.code() != ErrorCode::kPeerFailed && error.code() != ErrorCode::kTimeout) throw;
        if (took > plan_.timeout + kGrace) throw std::runtime_error("the loss was noticed too late");
        return;
      }
    }
    throw std::runtime_error("the loss of a rank was not noticed");
  }

  const GroupPlan& plan_;
  int rank_;
  MeetingPlace place_;
  std::unique_ptr<GroupChannel> channel_;
  std::unique_ptr<Replica> replica_;
};

}  // namespace

int run_member(const GroupPlan& plan, int rank) {
  try {
    if (plan.sharded) {
      run_sharded_member(plan, rank);
    } else {
      Member(plan, rank).run();
    }
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {} failed: {}\n", rank, error.what());
    return 1;
  }
}

}  // namespace sparsecast::test
