// SPDX-License-Identifier: Apache-2.0
#include "sharded/group_sync.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "transport/control/blobs.hpp"

namespace sparsecast {

SubscriberSide::SubscriberSide(std::string engine, std::shared_ptr<const Layout> layout, std::size_t rank,
                               std::shared_ptr<ShardMemory> memory, ShardedOptions options)
    : engine_(std::move(engine)),
      layout_(std::move(layout)),
      rank_(rank),
      memory_(std::move(memory)),
      options_(std::move(options)),
      version_(options_.version),
      last_attempt_(options_.version),
      needs_anchor_(options_.needs_anchor) {}

RankInfo SubscriberSide::rank_info() const {
  RankInfo own;
  own.role = Role::kEngine;
  own.group = engine_;
  own.rank = static_cast<std::uint32_t>(rank_);
  own.version = version_;
  own.in_doubt = in_doubt();
  own.last_attempt = last_attempt_;
  own.needs_anchor = needs_anchor_;
  own.set_layouts(*layout_, nullptr);
  return own;
}

void SubscriberSide::met(const Meeting& meeting, int world_rank) {
  if (in_doubt_) settle(meeting.version == last_attempt_);
  last_attempt_ = meeting.last_attempt;
  needs_anchor_ = needs_anchor_ || meeting.seeds(world_rank);
}

void SubscriberSide::build(const FanoutPlan& plan, int world_rank, const Meeting& meeting) {
  version_ = meeting.version;
  routes_.clear();
  SubscriberOptions subscribing;
  subscribing.stream = options_.stream;
  subscribing.version = version_;
  subscribing.threads = options_.threads;
  subscribing.audit_versions = options_.audit_versions;
  routes_ = make_destination_routes(plan, world_rank, *memory_, subscribing);
}

std::span<DestinationRoute> SubscriberSide::destinations_of(std::uint32_t route) {
  // Not equal_range: its subrange is more than clang 14 can read of GCC 12's library.
  const auto first = std::ranges::lower_bound(routes_, route, {}, &DestinationRoute::route);
  const auto last = std::ranges::upper_bound(first, routes_.end(), route, {}, &DestinationRoute::route);
  return {first, last};
}

void SubscriberSide::check_bases(const Transfer& transfer, const std::vector<Bytes>& records,
                                 const std::string& source) {
  if (records.size() != transfer.routes.size()) {
    throw Error(ErrorCode::kCorrupt, fmt::format("{} digests of {} routes", records.size(), transfer.routes.size()),
                source);
  }
  for (std::size_t i = 0; i < records.size(); ++i) {
    const auto base = value_of<StateDigest>(records[i], source);
    for (const DestinationRoute& destination : destinations_of(transfer.routes[i])) {
      if (destination.subscriber->digest() == base) continue;
      throw Error(ErrorCode::kWrongBase,
                  fmt::format("what is here for version {} is not what the trainer holds for it", version_),
                  fmt::format("route {} of {}, {} tensors from '{}'", destination.route, source,
                              destination.table->size(), (*destination.table)[0].name));
    }
  }
}

void SubscriberSide::stage(const Transfer& transfer, std::vector<Bytes> records, const std::string& source,
                           ShardedReport& report) {
  if (records.empty()) throw Error(ErrorCode::kPeerFailed, "it had nothing to send", source);
  std::size_t headers = 0;
  std::span<DestinationRoute> destinations;
  for (Bytes& record : records) {
    if (peek_record(record).kind == RecordKind::kHeader) {
      if (headers == transfer.routes.size()) {
        throw Error(ErrorCode::kCorrupt, fmt::format("more than {} deltas came", headers), source);
      }
      destinations = destinations_of(transfer.routes[headers++]);
    } else if (headers == 0) {
      throw Error(ErrorCode::kCorrupt, "the first record is not a header", source);
    }
    (destinations.empty() ? report.foreign_bytes : report.received_bytes) += record.size();
    try {
      for (const DestinationRoute& destination : destinations) destination.subscriber->stage(record);
    } catch (const Error& error) {
      throw error.within(fmt::format("route {} of {}", transfer.routes[headers - 1], source));
    }
    Bytes().swap(record);
  }
}

void SubscriberSide::require_staged() const {
  for (const DestinationRoute& route : routes_) {
    if (route.subscriber->ready()) continue;
    throw Error(ErrorCode::kIncomplete, "records of the delta are missing", fmt::format("route {}", route.route));
  }
}

void SubscriberSide::apply(ShardedReport& report) {
  for (const DestinationRoute& route : routes_) report.applied += route.subscriber->apply().changed;
}

/// Commits or rolls back the attempt on the routes that have applied it. A route that cannot be rolled back leaves the
/// rank without a version.
void SubscriberSide::settle(bool committed) {
  for (const DestinationRoute& route : routes_) {
    Subscriber& subscriber = *route.subscriber;
    subscriber.discard();
    if (!committed && !subscriber.dirty() && subscriber.version() != version_) {
      try {
        subscriber.undo_last();
      } catch (const Error&) {
        needs_anchor_ = true;
      }
    }
    needs_anchor_ = needs_anchor_ || subscriber.dirty();
  }
  if (committed) version_ = last_attempt_;
  in_doubt_ = false;
}

void SubscriberSide::settle_doubt(bool committed) {
  if (!in_doubt_) return;
  settle(committed);
  if (!needs_anchor_) return;
  throw Error(ErrorCode::kDirty, fmt::format("version {} could not be rolled back to {}", last_attempt_, version_),
              fmt::format("engine '{}', rank {}", engine_, rank_));
}

void SubscriberSide::replace(std::shared_ptr<const Layout> layout, std::shared_ptr<ShardMemory> memory) {
  if (in_doubt_) {
    throw Error(ErrorCode::kUsage,
                fmt::format("whether version {} was committed is not known: regroup() before", last_attempt_));
  }
  routes_.clear();
  layout_ = std::move(layout);
  memory_ = std::move(memory);
}

std::uint64_t SubscriberSide::audit_next() {
  std::uint64_t read = 0;
  for (const DestinationRoute& route : routes_) read += route.subscriber->audit_next();
  return read;
}

void SubscriberSide::audit() {
  for (const DestinationRoute& route : routes_) route.subscriber->audit();
}

}  // namespace sparsecast
