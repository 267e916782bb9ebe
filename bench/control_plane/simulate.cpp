// SPDX-License-Identifier: Apache-2.0
#include "control_plane/simulate.hpp"

#include <algorithm>
#include <functional>
#include <queue>

namespace sparsecast::bench {
namespace {

/// Beside the body of a message: its header and the tag that authenticates it.
constexpr std::uint64_t kFraming = 32;

/// A point in time, and how many messages were handled one after another to get there.
struct Moment {
  double time = 0;
  std::uint64_t messages = 0;
};

Moment later(const Moment& a, const Moment& b) { return a.time < b.time ? b : a; }
Moment after(Moment moment, double seconds, std::uint64_t messages = 0) {
  return {moment.time + seconds, moment.messages + messages};
}

struct Machine {
  Moment processor;  ///< When it is free again; so for the two directions of the network card.
  Moment outgoing;
  Moment incoming;
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
};

struct Arrival {
  Moment when;  ///< The last byte reaches the receiver's network card.
  int from = 0;
  int to = 0;
  std::uint64_t bytes = 0;
  bool operator>(const Arrival& other) const { return when.time > other.when.time; }
};

class Simulation {
 public:
  Simulation(int ranks, const Channel& channel, const Costs& costs)
      : channel_(channel), costs_(costs), machines_(static_cast<std::size_t>(ranks)) {}

  void run(const Step& step) {
    gather(step);
    Moment combined = machine(0).processor;
    if (channel_.reduces) combined = after(combined, step.combine_seconds);
    machine(0).processor = combined;
    spread(step);
    for (Machine& each : machines_) {
      each.processor = after(each.processor, channel_.reduces ? step.read_seconds : step.all_seconds);
    }
  }

  Total total() const {
    Total out;
    Moment end;
    for (const Machine& each : machines_) {
      end = later(end, each.processor);
      out.busiest = std::max(out.busiest, each.bytes_in + each.bytes_out);
    }
    out.seconds = end.time;
    out.path_messages = end.messages;
    out.hub_in = machines_[0].bytes_in;
    out.hub_out = machines_[0].bytes_out;
    return out;
  }

 private:
  Machine& machine(int rank) { return machines_[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(machines_.size()); }
  int parent(int rank) const { return channel_.fan_in == 0 ? 0 : (rank - 1) / channel_.fan_in; }
  std::vector<int> children(int rank) const {
    std::vector<int> out;
    const int first = channel_.fan_in == 0 ? 1 : rank * channel_.fan_in + 1;
    const int end = channel_.fan_in == 0 ? (rank == 0 ? size() : 0) : std::min(size(), first + channel_.fan_in);
    for (int child = first; child < end; ++child) out.push_back(child);
    return out;
  }

  void send(int from, int to, std::uint64_t body) {
    Machine& sender = machine(from);
    const std::uint64_t bytes = body + kFraming;
    const double count = static_cast<double>(bytes);
    sender.processor = after(sender.processor, costs_.message_seconds + count * costs_.byte_seconds, 1);
    sender.outgoing = after(later(sender.processor, sender.outgoing), count / costs_.bytes_per_second);
    sender.bytes_out += bytes;
    arrivals_.push({after(sender.outgoing, costs_.latency_seconds), from, to, bytes});
  }

  /// Delivers messages in the order of their arrival; `handle` may send others.
  void deliver(const std::function<void(const Arrival&)>& handle) {
    while (!arrivals_.empty()) {
      const Arrival arrival = arrivals_.top();
      arrivals_.pop();
      Machine& receiver = machine(arrival.to);
      const double count = static_cast<double>(arrival.bytes);
      receiver.incoming = later(arrival.when, after(receiver.incoming, count / costs_.bytes_per_second));
      receiver.processor =
          after(later(receiver.incoming, receiver.processor), costs_.message_seconds + count * costs_.byte_seconds, 1);
      receiver.bytes_in += arrival.bytes;
      handle(arrival);
    }
  }

  /// Each rank waits for its children, and passes their parts on with its own, in one message.
  void gather(const Step& step) {
    std::vector<std::size_t> waits_for(machines_.size());
    std::vector<std::uint64_t> collected = step.parts;
    for (int r = 0; r < size(); ++r) waits_for[static_cast<std::size_t>(r)] = children(r).size();
    for (int r = 1; r < size(); ++r) {
      if (waits_for[static_cast<std::size_t>(r)] == 0) send(r, parent(r), collected[static_cast<std::size_t>(r)]);
    }
    deliver([&](const Arrival& arrival) {
      const auto to = static_cast<std::size_t>(arrival.to);
      collected[to] += arrival.bytes;
      if (--waits_for[to] == 0 && to != 0) send(arrival.to, parent(arrival.to), collected[to]);
    });
  }

  void spread(const Step& step) {
    const std::uint64_t body = channel_.reduces ? step.reduced : step.gathered;
    for (const int child : children(0)) send(0, child, body);
    deliver([&](const Arrival& arrival) {
      for (const int child : children(arrival.to)) send(arrival.to, child, body);
    });
  }

  Channel channel_;
  Costs costs_;
  std::vector<Machine> machines_;
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arrivals_;
};

}  // namespace

Total simulate(const std::vector<Step>& steps, const Channel& channel, const Costs& costs) {
  Simulation simulation(static_cast<int>(steps.front().parts.size()), channel, costs);
  for (const Step& step : steps) simulation.run(step);
  return simulation.total();
}

}  // namespace sparsecast::bench
