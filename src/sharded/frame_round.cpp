// SPDX-License-Identifier: Apache-2.0
#include "sharded/frame_round.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/trace.hpp"

namespace sparsecast {
namespace {

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment; }

/// Returns the most bytes that the frames of a transfer may take, by what the plan says of its routes.
std::uint64_t most_bytes(const FanoutPlan& plan, const Transfer& transfer) {
  std::uint64_t most = 0;
  for (const std::uint32_t number : transfer.routes) {
    const Route& route = plan.routes()[number];
    most += most_delta_bytes(route.bytes, route.elements / kTileElems + route.regions.size());
  }
  return most;
}

std::uint64_t record_bytes(const StreamHead& stream) {
  std::uint64_t total = stream.header.size() + stream.commit.size();
  for (const std::uint32_t size : stream.sizes) total += size;
  return total;
}

}  // namespace

FrameRound::FrameRound(GroupTransports& wire, const Roles& roles, const Meeting& meeting)
    : wire_(wire), roles_(roles), meeting_(meeting), received_(wire.transfers().size()) {
  if (roles.subscriber == nullptr) return;
  // Own frames and those of others are staged together, so they have to come to the same memory.
  on_device_ = roles.subscriber->on_device() && (roles.publisher == nullptr || roles.publisher->on_device());
  for (std::size_t t = 0; t < received_.size(); ++t) {
    for (const std::uint32_t route : wire.transfers()[t]->routes) {
      const auto [begin, end] = roles.subscriber->routes().streams_of(route);
      received_[t].wanted = received_[t].wanted || begin != end;
    }
  }
}

/// Names all transfers of the round, with what this rank sends in them.
std::vector<FrameTransfer> FrameRound::open_transfers(ShardedReport& report) {
  std::vector<FrameTransfer> round;
  for (std::size_t t = 0; t < received_.size(); ++t) {
    FrameTransfer& transfer = round.emplace_back(wire_.frame_transfer(*wire_.transfers()[t]));
    if (!is_own(t)) continue;
    transfer.error = published_.status();
    if (published_.ok()) received_[t].head = roles_.publisher->offer(*wire_.transfers()[t], transfer, report);
  }
  return round;
}

void FrameRound::check_head(std::size_t t, const FrameTransfer& arrived) {
  const Transfer& transfer = *wire_.transfers()[t];
  try {
    if (arrived.error != 0) {
      throw Error(ErrorCode::kPeerFailed,
                  fmt::format("it had nothing to send: {}", to_string(static_cast<ErrorCode>(arrived.error))));
    }
    if (!received_[t].wanted) return;
    const std::uint64_t most = most_bytes(wire_.plan(), transfer);
    if (arrived.bytes > most) {
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("frames of {} bytes were announced; its routes have {} at most", arrived.bytes, most));
    }
    FrameHead head = parse_frame_head(arrived.head, arrived.bytes);
    if (head.streams.size() != transfer.routes.size()) {
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("{} deltas came for {} routes", head.streams.size(), transfer.routes.size()));
    }
    received_[t].head = std::move(head);
  } catch (const Error& error) {
    throw error.within(meeting_.name_of(transfer.source));
  }
}

/// Makes room on the host for the frames of this rank's routes in a transfer.
void FrameRound::receive_on_host(std::size_t t, FrameTransfer& transfer) {
  Received& received = received_[t];
  received.frames.resize(received.head.streams.size());
  for (std::size_t i = 0; i < received.frames.size(); ++i) {
    const auto [begin, end] = roles_.subscriber->routes().streams_of(wire_.transfers()[t]->routes[i]);
    if (begin == end) continue;
    const StreamHead& stream = received.head.streams[i];
    for (std::size_t f = 0; f < stream.sizes.size(); ++f) {
      Bytes& frame = received.frames[i].emplace_back(stream.sizes[f]);
      transfer.pieces.push_back({frame.data(), stream.offsets[f], frame.size(), false});
    }
  }
}

/// Makes room on the device for the transfers that have routes of this rank; all of a transfer comes.
void FrameRound::reserve_on_device(std::vector<FrameTransfer>& round) {
  std::uint64_t own = 0;
  std::uint64_t all = 0;
  for (std::size_t t = 0; t < round.size(); ++t) {
    if (!received_[t].wanted || is_own(t)) continue;
    all += aligned(round[t].bytes);
    own += own_bytes(t);
  }
  if (!roles_.subscriber->routes().subscriber) return;
  std::byte* d_range = roles_.subscriber->routes().subscriber->reserve_frames(own, all - std::min(own, all));
  for (std::size_t t = 0; t < round.size(); ++t) {
    if (!received_[t].wanted || is_own(t)) continue;
    round[t].d_frames = d_range;
    d_range += aligned(round[t].bytes);
    for (const StreamHead& stream : received_[t].head.streams) {
      received_[t].d_frames.push_back(stream.frames_in(round[t].d_frames));
    }
  }
}

/// Takes the own frames for routes that this rank receives from itself.
void FrameRound::take_own(std::size_t t) {
  const Transfer& transfer = *wire_.transfers()[t];
  Received& received = received_[t];
  if (on_device_) {
    received.d_frames = roles_.publisher->frames_on_device(transfer);
  } else {
    received.frames = roles_.publisher->frames_on_host(transfer);
  }
}

/// Returns the bytes of the records in a transfer that are for routes of this rank.
std::uint64_t FrameRound::own_bytes(std::size_t t) const {
  std::uint64_t own = 0;
  for (std::size_t i = 0; i < received_[t].head.streams.size(); ++i) {
    const auto [begin, end] = roles_.subscriber->routes().streams_of(wire_.transfers()[t]->routes[i]);
    if (begin != end) own += record_bytes(received_[t].head.streams[i]);
  }
  return own;
}

/// Counts what comes in a transfer of another rank.
void FrameRound::count(std::size_t t, const FrameTransfer& arrived, ShardedReport& report) const {
  const std::uint64_t own = own_bytes(t);
  report.received_bytes += own;
  report.foreign_bytes += arrived.head.size() + arrived.bytes - std::min(own, arrived.head.size() + arrived.bytes);
}

/// Finds out what comes, and makes room for it.
void FrameRound::prepare(std::vector<FrameTransfer>& round, ShardedReport& report) {
  for (std::size_t t = 0; t < round.size(); ++t) {
    if (is_own(t)) {
      if (received_[t].wanted && published_.ok()) staged_.then([&] { take_own(t); });
      continue;
    }
    if (roles_.subscriber != nullptr) staged_.then([&] { check_head(t, round[t]); });
    if (received_[t].wanted && !on_device_) staged_.then([&] { receive_on_host(t, round[t]); });
    count(t, round[t], report);
  }
  if (on_device_) staged_.then([&] { reserve_on_device(round); });
}

/// Calls take(stream of the subscriber, what came for it, its number in the transfer) for each place of this rank.
template <class Take>
void FrameRound::for_each_place(const Take& take) {
  for (std::size_t t = 0; t < received_.size(); ++t) {
    if (!received_[t].wanted) continue;
    const Transfer& transfer = *wire_.transfers()[t];
    for (std::size_t i = 0; i < transfer.routes.size(); ++i) {
      const auto [begin, end] = roles_.subscriber->routes().streams_of(transfer.routes[i]);
      try {
        for (std::size_t s = begin; s < end; ++s) take(s, received_[t], i);
      } catch (const Error& error) {
        throw error.within(fmt::format("route {} of {}", transfer.routes[i], meeting_.name_of(transfer.source)));
      }
    }
  }
}

void FrameRound::stage() {
  JoinedSubscriber& subscriber = *roles_.subscriber->routes().subscriber;
  std::vector<StreamRecords> on_device;
  for_each_place([&](std::size_t s, Received& received, std::size_t i) {
    subscriber.stage(s, received.head.streams[i].header);
    if (on_device_) {
      on_device.push_back({s, received.d_frames[i]});
    } else {
      for (const Bytes& frame : received.frames[i]) subscriber.stage(s, frame);
    }
  });
  if (on_device_) subscriber.stage_frames(on_device, nullptr);
  for_each_place([&](std::size_t s, const Received& received, std::size_t i) {
    subscriber.stage(s, received.head.streams[i].commit);
  });
  roles_.subscriber->require_staged();
}

void FrameRound::run(ShardedReport& report, Deadline deadline) {
  Stopwatch watch;
  if (roles_.publisher != nullptr) {
    const TraceRange<"sync.publish"> range({.version = roles_.publisher->last_attempt()});
    published_ = Outcome::of([&] { roles_.publisher->publish_frames(); });
  }
  report.encode_seconds = watch.lap();
  std::vector<FrameTransfer> round = open_transfers(report);
  {
    const TraceRange<"sync.wire"> range;
    wire_.exchange_heads(round, deadline);
    prepare(round, report);
    wire_.broadcast_frames(round, deadline);
  }
  report.wire_seconds = watch.lap();
  if (roles_.subscriber == nullptr || !roles_.subscriber->routes().subscriber || !published_.ok()) return;
  staged_.then([&] {
    const TraceRange<"sync.stage"> range;
    stage();
  });
  report.stage_seconds = watch.lap();
}

}  // namespace sparsecast
