// SPDX-License-Identifier: Apache-2.0
#include "sync/transfers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/trace.hpp"
#include "sync/attempt.hpp"
#include "sync/frame_round.hpp"
#include "sync/transfer_pipeline.hpp"

namespace sparsecast {
namespace {

/// Returns the records of the routes of an own transfer, which have been published: each route's records begin with its
/// header. They are copies: a transport must own the records that it sends, because after a failure it may still read
/// them.
std::vector<Bytes> records_of(const SyncTransfer& transfer, const PublisherState& publisher, TransferReport& report) {
  std::vector<Bytes> records;
  for (const TransferRoute& route : transfer.routes) {
    const Delta& delta = publisher.deltas()[route.stream];
    records.push_back(delta.header);
    records.insert(records.end(), delta.frames.begin(), delta.frames.end());
    records.push_back(delta.commit);
    report.sent_bytes += delta.wire_bytes();
    report.changed += delta.result.changed;
  }
  return records;
}

/// Stages the records of transfers, one transfer after another.
class RecordStager {
 public:
  explicit RecordStager(SubscriberState& subscriber) : subscriber_(subscriber) {}

  void stage(const SyncTransfer& transfer, std::vector<Bytes> records) {
    if (records.empty()) throw Error(ErrorCode::kPeerFailed, "it had nothing to send", transfer.from);
    std::size_t begun = 0;
    for (Bytes& record : records) {
      if (peek_record(record).kind == RecordKind::kHeader) {
        if (begun == transfer.routes.size()) {
          throw Error(ErrorCode::kCorrupt, fmt::format("more than {} deltas came", begun), transfer.from);
        }
        ++begun;
      } else if (begun == 0) {
        throw Error(ErrorCode::kCorrupt, "the first record is not a header", transfer.from);
      }
      const TransferRoute& route = transfer.routes[begun - 1];
      // The source does not receive its own records.
      if (route.wanted()) received_bytes += record.size();
      if (!route.wanted() && !transfer.own) foreign_bytes += record.size();
      try {
        for (std::size_t s = route.first; s < route.last && !held_already; ++s) stage(s, record, records.back());
      } catch (const Error& error) {
        throw error.within(transfer.name_of(route));
      }
      if (&record != &records.back()) Bytes().swap(record);
    }
  }

  std::uint64_t received_bytes = 0;
  std::uint64_t foreign_bytes = 0;
  bool held_already = false;

 private:
  void stage(std::size_t stream, ConstBytes record, ConstBytes last) {
    try {
      subscriber_.stage(stream, record);
    } catch (const Error& error) {
      require_held(subscriber_, error, record, last);
      held_already = true;
    }
  }

  SubscriberState& subscriber_;
};

/// Runs transfers of records in host memory.
TransferReport pass_records(const std::vector<SyncTransfer>& transfers, const SyncEnds& ends, ControlChannel& control,
                            Deadline deadline) {
  TransferReport report;
  std::optional<RecordStager> stager;
  TransferSteps steps;
  steps.publish = [&ends](const std::function<void()>& published) {
    const TraceRange<"sync.publish"> range({.version = ends.version});
    ends.publisher->publish(ends.weights_ready, [&](std::size_t, const Delta&) { published(); });
  };
  steps.records = [&](const SyncTransfer& transfer) { return records_of(transfer, *ends.publisher, report); };
  steps.broadcast = [&](const SyncTransfer& transfer, std::vector<Bytes>& records) {
    const TraceRange<"sync.wire"> range({.version = ends.version});
    try {
      transfer.channel->broadcast(records, transfer.source, deadline);
    } catch (const Error& error) {
      throw error.within(fmt::format("group {}, from {}", transfer.group, transfer.from));
    }
    if (stager || transfer.own) return;
    for (const Bytes& record : records) report.foreign_bytes += record.size();
  };
  if (ends.subscriber != nullptr) {
    stager.emplace(*ends.subscriber);
    steps.stage = [&](const SyncTransfer& transfer, std::vector<Bytes> records) {
      const TraceRange<"sync.stage"> range({.version = ends.version});
      stager->stage(transfer, std::move(records));
    };
  }
  {
    // The pipeline's threads end only after the other ranks have learned of a failure.
    TransferPipeline pipeline(transfers, std::move(steps));
    or_abort(control, [&] { pipeline.run(deadline); });
    report.published = pipeline.published();
    report.staged = pipeline.staged();
    report.encode_seconds = pipeline.encode_seconds();
    report.wire_seconds = pipeline.wire_seconds();
    report.stage_seconds = pipeline.stage_seconds();
  }
  if (stager) {
    report.held_already = stager->held_already;
    report.received_bytes = stager->received_bytes;
    report.foreign_bytes += stager->foreign_bytes;
  }
  return report;
}

/// Verifies the received records of all routes that are still unverified. Throws unless all routes have arrived.
void require_staged(const std::vector<SyncTransfer>& transfers, SubscriberState& subscriber) {
  for (const SyncTransfer& transfer : transfers) {
    for (const TransferRoute& route : transfer.routes) {
      for (std::size_t s = route.first; s < route.last; ++s) {
        if (subscriber.complete(s)) continue;
        throw Error(ErrorCode::kIncomplete, "records of the delta are missing", transfer.name_of(route));
      }
    }
  }
  subscriber.verify();
}

}  // namespace

bool SyncTransfer::wanted() const noexcept { return std::ranges::any_of(routes, &TransferRoute::wanted); }

std::string SyncTransfer::name_of(const TransferRoute& route) const {
  return fmt::format("route {} of {}", route.number, from);
}

TransferReport run_transfers(const std::vector<SyncTransfer>& transfers, const SyncEnds& ends, ControlChannel& control,
                             Deadline deadline) {
  TransferReport report;
  if (FrameRound::is_for(transfers)) {
    or_abort(control, [&] { report = FrameRound(transfers, ends).run(deadline); });
  } else {
    report = pass_records(transfers, ends, control, deadline);
  }
  if (ends.subscriber == nullptr || !report.published.ok() || report.held_already) return report;
  const Stopwatch watch;
  report.staged.then([&] { require_staged(transfers, *ends.subscriber); });
  report.stage_seconds += watch.total();
  return report;
}

void require_held(const SubscriberState& subscriber, const Error& error, ConstBytes header, ConstBytes commit) {
  if (error.code() == ErrorCode::kStaleVersion && subscriber.tables().streams() == 1 && !subscriber.dirty()) {
    const CommitRecord last = parse_commit(commit);
    if (last.delta_id == parse_header(header).delta_id && last.version == subscriber.version() &&
        last.result_digest == subscriber.digest(0)) {
      return;
    }
  }
  throw Error(error);
}

}  // namespace sparsecast
