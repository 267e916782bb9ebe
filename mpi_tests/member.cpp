// SPDX-License-Identifier: Apache-2.0
#include "member.hpp"

#include "support/forwarding_control.hpp"

namespace sparsecast::mpi_test {

/// The control channel of the transport, with a hook before each vote.
class FaultyTransport::Votes final : public test::ForwardingControl {
 public:
  Votes(std::shared_ptr<ControlChannel> inner, std::function<void(int vote)> before)
      : ForwardingControl(std::move(inner)), before_(std::move(before)) {}

  Bytes reduce(std::span<const std::byte> own, const Combine& combine, Deadline deadline) override {
    begin();
    return ForwardingControl::reduce(own, combine, deadline);
  }
  int agree(int status, int coordinator, Deadline deadline) override {
    begin();
    return ForwardingControl::agree(status, coordinator, deadline);
  }

 private:
  void begin() {
    ++votes_;
    if (before_) before_(votes_);
  }

  std::function<void(int vote)> before_;
  int votes_ = 0;
};

FaultyTransport::FaultyTransport(const void* communicator, const WireLimits& limits, Faults faults)
    : faults_(std::move(faults)) {
  auto control = make_mpi_control_channel(communicator);
  inner_ = make_mpi_transport(control, limits);
  votes_ = std::make_unique<Votes>(std::move(control), faults_.before_vote);
}
FaultyTransport::~FaultyTransport() = default;

ControlChannel& FaultyTransport::control() const noexcept { return *votes_; }

void FaultyTransport::broadcast(std::vector<Bytes>& records, int source, Deadline deadline) {
  inner_->broadcast(records, source, deadline);
  if (faults_.receive && inner_->rank() != source) faults_.receive(records);
}

Member::Member(const Case& running, const MemberOptions& options)
    : options_(options), model_(running.seed(), options.width), committed_(model_.weights()), replica_(committed_) {
  MPI_Comm_rank(options_.communicator, &rank_);
  MPI_Comm_size(options_.communicator, &size_);
  if (is_source()) {
    PublisherOptions publishing;
    publishing.encode = options_.encode;
    publisher_.emplace(model_.table(), refs_to(*model_.table(), model_.live()), publishing);
  } else {
    subscribe();
  }
  open();
}

void Member::subscribe() {
  subscriber_.emplace(model_.table(), refs_to(*model_.table(), test::tensor_views(replica_)), SubscriberOptions{});
}

void Member::open(Faults faults) {
  transport_.reset();
  transport_ = std::make_unique<FaultyTransport>(&options_.communicator, options_.limits, std::move(faults));
}

Outcome Member::sync(std::chrono::milliseconds timeout) {
  return outcome_of([&] {
    if (is_source()) {
      report_ = sync_send(*publisher_, *transport_, timeout);
      committed_ = model_.weights();
    } else {
      report_ = sync_receive(*subscriber_, *transport_, options_.source, timeout);
    }
  });
}

test::Storage Member::fetch_committed() {
  test::Storage weights = committed_;
  for (auto& tensor : weights) {
    MPI_Bcast(tensor.data(), static_cast<int>(tensor.size()), MPI_BYTE, options_.source, options_.communicator);
  }
  return weights;
}

std::uint64_t Member::wrong() {
  const test::Storage expected = fetch_committed();
  const std::uint64_t own = is_source() ? 0 : test::count_wrong(*model_.table(), replica_, expected);
  return sum_over_ranks(own, options_.communicator);
}

void Member::repair(int receiver) {
  const test::Storage anchor = fetch_committed();
  std::uint64_t state[3] = {};
  if (is_source()) {
    state[0] = publisher_->version();
    state[1] = publisher_->digest().value.lo;
    state[2] = publisher_->digest().value.hi;
  }
  MPI_Bcast(state, 3, MPI_UINT64_T, options_.source, options_.communicator);
  if (rank_ != receiver) return;
  for (std::size_t t = 0; t < anchor.size(); ++t) std::copy(anchor[t].begin(), anchor[t].end(), replica_[t].begin());
  subscriber_->reset(state[0], StateDigest{{state[1], state[2]}});
}

void expect_synchronised(Case& running, Member& member, const Outcome& outcome, std::uint64_t version) {
  running.expect_success(outcome, fmt::format("sync to version {}", version));
  running.expect_equal(member.version(), version, "version");
  running.expect_equal(member.wrong(), 0U, fmt::format("wrong weights over all ranks at version {}", version));
}

}  // namespace sparsecast::mpi_test
