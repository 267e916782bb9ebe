// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstring>

#include "sparsecast_perf/group.hpp"

namespace sparsecast::perf {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// A hub closes its last step a little before the deadline.
constexpr milliseconds kClosing{600};

milliseconds in_milliseconds(double seconds) { return milliseconds(static_cast<std::int64_t>(seconds * 1000)); }

std::string machine_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

class RendezvousGroup final : public Group {
  /// The rank that is busy when the limit passes has done nothing wrong.
  template <class Call>
  auto within_limit(const Call& call) const {
    try {
      return call();
    } catch (const Error& error) {
      if (steady_clock::now() < end_ - kClosing) throw;
      throw error.within("the limit of the whole run has passed (--limit)");
    }
  }

 public:
  RendezvousGroup(Place place, const Options& options)
      : end_(steady_clock::now() + in_milliseconds(options.limit_seconds)),
        timeout_(in_milliseconds(options.timeout_seconds)) {
    RendezvousOptions meeting;
    meeting.host = place.host;
    meeting.port = place.port;
    meeting.rank = place.rank;
    meeting.size = place.size;
    meeting.secret = place.secret;
    meeting.timeout = timeout_;
    control_ = place.listener ? Rendezvous::meet(meeting, *place.listener) : Rendezvous::meet(meeting);
    count_neighbours();
  }

  int rank() const noexcept override { return control_->rank(); }
  int size() const noexcept override { return control_->size(); }
  int local_rank() const noexcept override { return local_rank_; }
  void barrier() override {
    within_limit([&] { return control_->agree(0, kPublisher, end_); });
  }

  std::vector<std::uint64_t> all_gather(std::uint64_t own) override {
    std::vector<std::uint64_t> values;
    for (const Bytes& part :
         within_limit([&] { return control_->all_gather(std::as_bytes(std::span(&own, 1)), end_); })) {
      if (part.size() != sizeof(own)) throw Error(ErrorCode::kGroupMismatch, "the ranks are at different steps");
      std::memcpy(&values.emplace_back(), part.data(), sizeof(own));
    }
    return values;
  }

  Bytes broadcast(Bytes own) override {
    return within_limit([&] { return control_->broadcast(own, end_); });
  }

  std::shared_ptr<ControlChannel> open_control() override {
    return control_->split(0, rank(), steady_clock::now() + timeout_);
  }

  void fail(const std::string& reason) noexcept override { control_->abort(reason); }

 private:
  void count_neighbours() {
    const std::string own = machine_name();
    const auto names = control_->all_gather(std::as_bytes(std::span<const char>(own)), end_);
    for (int r = 0; r < rank(); ++r) {
      if (names[static_cast<std::size_t>(r)] == names[static_cast<std::size_t>(rank())]) ++local_rank_;
    }
  }

  Deadline end_;
  milliseconds timeout_;
  std::shared_ptr<Rendezvous> control_;
  int local_rank_ = 0;
};

}  // namespace

std::unique_ptr<Group> make_rendezvous_group(Place place, const Options& options) {
  return std::make_unique<RendezvousGroup>(std::move(place), options);
}

}  // namespace sparsecast::perf
