// SPDX-License-Identifier: Apache-2.0
#include "control_plane/run.hpp"

#include <exception>
#include <thread>
#include <utility>

#include "core/outcome.hpp"
#include "sparsecast/tcp_transport.hpp"
#include "tests/support/forwarding_control.hpp"
#include "transport/control/blobs.hpp"

namespace sparsecast::bench {
namespace {

using std::chrono::steady_clock;

/// A control channel without a reduce of its own: the default one, over all_gather, whatever the inner channel has.
class GatheringControl final : public test::ForwardingControl {
 public:
  using ForwardingControl::ForwardingControl;

  Bytes reduce(std::span<const std::byte> own, const Combine& combine, Deadline deadline) override {
    return ControlChannel::reduce(own, combine, deadline);  // NOLINT(bugprone-parent-virtual-call)
  }
};

class Rank {
 public:
  Rank(const World& world, int repeats, std::vector<HubStep>* steps)
      : world_(world), repeats_(repeats), steps_(steps) {}

  /// Runs everything; rank 0 notes the costs of each step.
  void run(const RendezvousOptions& options, RendezvousListener& listener, bool reduces, Deadline deadline) {
    const int r = options.rank;
    std::shared_ptr<ControlChannel> channel;
    measure("rendezvous", 1,
            [&] { channel = r == 0 ? Rendezvous::meet(options, listener) : Rendezvous::meet(options); });
    if (!reduces) channel = std::make_shared<GatheringControl>(std::move(channel));
    channel->agree(0, 0, deadline);
    Meeting meeting;
    measure("meet", 1, [&] {
      meeting = meet(*channel, {world_.rank_infos[static_cast<std::size_t>(r)]}, {world_.layout_of(r)}, deadline);
    });
    channel->agree(0, 0, deadline);
    measure("votes", repeats_,
            [&] { exchange_votes(voters_of(meeting, channel.get()), world_.vote_of(r), {}, deadline); });
    channel->agree(0, 0, deadline);
    measure("agree", repeats_, [&] { channel->agree(0, 0, deadline); });
    channel->agree(0, 0, deadline);
    const Bytes large(std::size_t{1} << 18);
    measure("broadcast of 256 KiB", 1, [&] { channel->broadcast(large, deadline); });
    channel->agree(0, 0, deadline);
  }

 private:
  template <class Call>
  void measure(const char* name, int repeats, const Call& call) {
    const Stopwatch watch;
    const double start = thread_seconds();
    for (int i = 0; i < repeats; ++i) call();
    if (steps_ != nullptr) steps_->push_back({name, watch.total() / repeats, (thread_seconds() - start) / repeats});
  }

  const World& world_;
  int repeats_;
  std::vector<HubStep>* steps_;
};

}  // namespace

std::vector<HubStep> run_world(const World& world, bool reduces, int repeats, std::chrono::milliseconds timeout) {
  RendezvousOptions options;
  options.size = world.size();
  options.secret = "the ranks of one process meet here";
  options.timeout = timeout;
  RendezvousListener listener(options);
  options.port = listener.port();
  const Deadline deadline = steady_clock::now() + timeout;
  std::vector<HubStep> steps;
  std::vector<std::exception_ptr> failures(world.rank_infos.size());
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < world.size(); ++r) {
      threads.emplace_back([&, r, options]() mutable {
        options.rank = r;
        try {
          Rank(world, repeats, r == 0 ? &steps : nullptr).run(options, listener, reduces, deadline);
        } catch (...) {
          failures[static_cast<std::size_t>(r)] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return steps;
}

}  // namespace sparsecast::bench
