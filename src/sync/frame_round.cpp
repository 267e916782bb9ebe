// SPDX-License-Identifier: Apache-2.0
#include "sync/frame_round.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/trace.hpp"

namespace sparsecast {
namespace {

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment; }

std::uint64_t record_bytes(const StreamHead& stream) {
  std::uint64_t total = stream.header.size() + stream.commit.size();
  for (const std::uint32_t size : stream.sizes) total += size;
  return total;
}

}  // namespace

bool FrameRound::is_for(const std::vector<SyncTransfer>& transfers) {
  return !transfers.empty() && std::ranges::all_of(transfers, [](const SyncTransfer& transfer) {
    return transfer.channel->frames() != nullptr;
  });
}

FrameRound::FrameRound(const std::vector<SyncTransfer>& transfers, const SyncEnds& ends)
    : transfers_(transfers), ends_(ends), received_(transfers.size()) {
  if (ends.subscriber == nullptr) return;
  // Own frames and received frames are staged together, so they must be in the same memory.
  on_device_ = ends.subscriber->on_device() && (ends.publisher == nullptr || ends.publisher->on_device());
  for (std::size_t t = 0; t < received_.size(); ++t) received_[t].wanted = transfers[t].wanted();
}

void FrameRound::publish() {
  const TraceRange<"sync.publish"> range({.version = ends_.version});
  ends_.publisher->on_device() ? static_cast<void>(ends_.publisher->publish_on_device(ends_.weights_ready))
                               : static_cast<void>(ends_.publisher->publish(ends_.weights_ready));
}

/// Fills `head` and `transfer` with the frames of this rank's own transfer `own`, whose routes have been published, and
/// with their memory.
void FrameRound::offer(const SyncTransfer& own, FrameHead& head, FrameTransfer& transfer) {
  const bool on_device = ends_.publisher->on_device();
  std::vector<const DeviceDelta*> on_devices;
  for (const TransferRoute& route : own.routes) {
    const Delta& delta = ends_.publisher->deltas()[route.stream];
    report_.changed += delta.result.changed;
    if (on_device) {
      const DeviceDelta& device_delta = *on_devices.emplace_back(&ends_.publisher->on_device_deltas()[route.stream]);
      head.add(device_delta);
      report_.sent_bytes += device_delta.wire_bytes();
      transfer.cuda_stream = device_delta.cuda_stream;
    } else {
      head.add(delta);
      report_.sent_bytes += delta.wire_bytes();
    }
  }
  transfer.head = head.pack();
  transfer.bytes = head.bytes;
  // The transport only reads a source's memory.
  transfer.d_frames = const_cast<std::byte*>(range_of_frames(head, on_devices));
  if (transfer.d_frames != nullptr) return;
  for (std::size_t i = 0; i < own.routes.size(); ++i) {
    const StreamHead& stream = head.streams[i];
    const Delta& delta = ends_.publisher->deltas()[own.routes[i].stream];
    for (std::size_t f = 0; f < stream.offsets.size(); ++f) {
      const std::byte* const data = on_device ? on_devices[i]->frames[f].d_record : delta.frames[f].data();
      transfer.pieces.push_back({const_cast<std::byte*>(data), stream.offsets[f], stream.sizes[f], on_device});
    }
  }
}

/// Returns all transfers of the round, filled with what this rank sends in them.
std::vector<FrameTransfer> FrameRound::open_transfers() {
  std::vector<FrameTransfer> round;
  for (std::size_t t = 0; t < received_.size(); ++t) {
    const SyncTransfer& transfer = transfers_[t];
    FrameTransfer& out = round.emplace_back();
    out.channel = transfer.channel->frames();
    out.source = transfer.source;
    out.head_room = static_cast<std::uint32_t>(
        std::min<std::size_t>(expected_head_bytes(transfer.routes.size()), FrameTransfer::kMostHeadRoom));
    if (!transfer.own) continue;
    if (report_.published.ok()) offer(transfer, received_[t].head, out);
    out.error = report_.published.status();
    if (out.head.size() > FrameTransfer::kMaxHeadBytes) out.error = static_cast<int>(ErrorCode::kUsage);
  }
  return round;
}

void FrameRound::check_head(std::size_t t, const FrameTransfer& arrived) {
  const SyncTransfer& transfer = transfers_[t];
  try {
    if (arrived.error != 0) {
      throw Error(ErrorCode::kPeerFailed,
                  fmt::format("it had nothing to send: {}", to_string(static_cast<ErrorCode>(arrived.error))));
    }
    if (!received_[t].wanted) return;
    if (arrived.bytes > transfer.most_bytes) {
      throw Error(ErrorCode::kCorrupt, fmt::format("frames of {} bytes were announced; its routes have {} at most",
                                                   arrived.bytes, transfer.most_bytes));
    }
    FrameHead head = parse_frame_head(arrived.head, arrived.bytes);
    if (head.streams.size() != transfer.routes.size()) {
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("{} deltas came for {} routes", head.streams.size(), transfer.routes.size()));
    }
    received_[t].head = std::move(head);
  } catch (const Error& error) {
    throw error.within(transfer.from);
  }
}

/// Makes room on the host for the frames of this rank's routes in a transfer.
void FrameRound::receive_on_host(std::size_t t, FrameTransfer& transfer) {
  Received& received = received_[t];
  received.frames.resize(received.head.streams.size());
  for (std::size_t i = 0; i < received.frames.size(); ++i) {
    if (!transfers_[t].routes[i].wanted()) continue;
    const StreamHead& stream = received.head.streams[i];
    for (std::size_t f = 0; f < stream.sizes.size(); ++f) {
      Bytes& frame = received.frames[i].emplace_back(stream.sizes[f]);
      transfer.pieces.push_back({frame.data(), stream.offsets[f], frame.size(), false});
    }
  }
}

/// Makes room on the device for the transfers that have routes of this rank; a transfer is received whole.
void FrameRound::reserve_on_device(std::vector<FrameTransfer>& round) {
  std::uint64_t own = 0;
  std::uint64_t all = 0;
  for (std::size_t t = 0; t < round.size(); ++t) {
    if (!received_[t].wanted || transfers_[t].own) continue;
    all += aligned(round[t].bytes);
    own += own_bytes(t);
  }
  std::byte* d_range = ends_.subscriber->reserve_frames(own, all - std::min(own, all));
  for (std::size_t t = 0; t < round.size(); ++t) {
    if (!received_[t].wanted || transfers_[t].own) continue;
    round[t].d_frames = d_range;
    d_range += aligned(round[t].bytes);
    for (const StreamHead& stream : received_[t].head.streams) {
      received_[t].d_frames.push_back(stream.frames_in(round[t].d_frames));
    }
  }
}

/// Takes the frames of this rank's own transfer number `t` for routes that it receives from itself.
void FrameRound::take_own(std::size_t t) {
  Received& received = received_[t];
  if (!on_device_) ends_.publisher->take_frames();
  for (const TransferRoute& route : transfers_[t].routes) {
    if (on_device_) {
      received.d_frames.push_back(ends_.publisher->on_device_deltas()[route.stream].frames);
    } else {
      received.frames.push_back(ends_.publisher->deltas()[route.stream].frames);
    }
  }
}

/// Returns the bytes of the records in a transfer that are for routes of this rank.
std::uint64_t FrameRound::own_bytes(std::size_t t) const {
  std::uint64_t own = 0;
  for (std::size_t i = 0; i < received_[t].head.streams.size(); ++i) {
    if (transfers_[t].routes[i].wanted()) own += record_bytes(received_[t].head.streams[i]);
  }
  return own;
}

/// Counts the bytes that arrive in a transfer of another rank.
void FrameRound::count(std::size_t t, const FrameTransfer& arrived) {
  const std::uint64_t own = own_bytes(t);
  report_.received_bytes += own;
  report_.foreign_bytes += arrived.head.size() + arrived.bytes - std::min(own, arrived.head.size() + arrived.bytes);
}

/// Determines the sizes of what arrives, and makes room for it.
void FrameRound::prepare(std::vector<FrameTransfer>& round) {
  for (std::size_t t = 0; t < round.size(); ++t) {
    if (transfers_[t].own) {
      if (received_[t].wanted && report_.published.ok()) report_.staged.then([&] { take_own(t); });
      continue;
    }
    if (ends_.subscriber != nullptr) report_.staged.then([&] { check_head(t, round[t]); });
    if (received_[t].wanted && !on_device_) report_.staged.then([&] { receive_on_host(t, round[t]); });
    count(t, round[t]);
  }
  if (on_device_) report_.staged.then([&] { reserve_on_device(round); });
}

/// Calls take(s, received, i) for each destination of this rank: s is the stream of the subscriber, and i the number of
/// the received stream in the head of its transfer.
template <class Take>
void FrameRound::for_each_place(const Take& take) {
  for (std::size_t t = 0; t < received_.size(); ++t) {
    if (!received_[t].wanted) continue;
    const std::vector<TransferRoute>& routes = transfers_[t].routes;
    for (std::size_t i = 0; i < routes.size(); ++i) {
      try {
        for (std::size_t s = routes[i].first; s < routes[i].last; ++s) take(s, received_[t], i);
      } catch (const Error& error) {
        throw error.within(transfers_[t].name_of(routes[i]));
      }
    }
  }
}

void FrameRound::stage() {
  SubscriberState& subscriber = *ends_.subscriber;
  std::vector<StreamRecords> on_device;
  for_each_place([&](std::size_t s, Received& received, std::size_t i) {
    const StreamHead& stream = received.head.streams[i];
    try {
      subscriber.stage(s, stream.header);
    } catch (const Error& error) {
      require_held(subscriber, error, stream.header, stream.commit);
      report_.held_already = true;
      return;
    }
    if (on_device_) {
      on_device.push_back({s, received.d_frames[i]});
    } else {
      for (const Bytes& frame : received.frames[i]) subscriber.stage(s, frame);
    }
  });
  if (report_.held_already) return;
  if (on_device_) subscriber.stage_frames(on_device, nullptr);
  for_each_place([&](std::size_t s, const Received& received, std::size_t i) {
    subscriber.stage(s, received.head.streams[i].commit);
  });
}

TransferReport FrameRound::run(Deadline deadline) {
  Stopwatch watch;
  if (ends_.publisher != nullptr) report_.published = Outcome::of([&] { publish(); });
  report_.encode_seconds = watch.lap();
  std::vector<FrameTransfer> round = open_transfers();
  {
    const TraceRange<"sync.wire"> range({.version = ends_.version});
    exchange_heads(round, deadline);
    prepare(round);
    broadcast_frames(round, deadline);
  }
  report_.wire_seconds = watch.lap();
  if (ends_.subscriber == nullptr || !report_.published.ok()) return std::move(report_);
  report_.staged.then([&] {
    const TraceRange<"sync.stage"> range({.version = ends_.version});
    stage();
  });
  report_.stage_seconds = watch.lap();
  return std::move(report_);
}

}  // namespace sparsecast
