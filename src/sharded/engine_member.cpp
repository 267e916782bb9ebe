// SPDX-License-Identifier: Apache-2.0
#include "sharded/group_sync.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "transport/control/blobs.hpp"

namespace sparsecast {

EngineMember::EngineMember(std::string engine, std::shared_ptr<const Layout> layout, std::size_t rank,
                           std::shared_ptr<ShardMemory> memory, ShardedOptions options)
    : engine_(std::move(engine)),
      layout_(std::move(layout)),
      rank_(rank),
      memory_(std::move(memory)),
      options_(std::move(options)),
      version_(options_.version),
      last_attempt_(options_.version),
      needs_anchor_(options_.needs_anchor) {}

RankInfo EngineMember::rank_info() const {
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

void EngineMember::on_regrouped(const Meeting& meeting, int world_rank) {
  if (in_doubt_) settle(meeting.version == last_attempt_);
  last_attempt_ = meeting.last_attempt;
  needs_anchor_ = needs_anchor_ || meeting.needs_anchor(world_rank);
}

void EngineMember::build(const FanoutPlan& plan, int world_rank, const Meeting& meeting) {
  version_ = meeting.version;
  routes_ = {};
  SubscriberOptions subscribing;
  subscribing.stream = options_.stream;
  subscribing.version = version_;
  subscribing.threads = options_.threads;
  subscribing.audit_versions = options_.audit_versions;
  subscribing.audit_time = options_.audit_time;
  routes_ = make_destination_routes(plan, world_rank, *memory_, subscribing);
}

void EngineMember::check_bases(const Transfer& transfer, const std::vector<Bytes>& records, const std::string& source) {
  if (records.size() != transfer.routes.size()) {
    throw Error(ErrorCode::kCorrupt, fmt::format("{} digests of {} routes", records.size(), transfer.routes.size()),
                source);
  }
  for (std::size_t i = 0; i < records.size(); ++i) {
    const auto base = value_of<StateDigest>(records[i], source);
    const auto [begin, end] = routes_.streams_of(transfer.routes[i]);
    for (std::size_t s = begin; s < end; ++s) {
      if (routes_.subscriber->digest(s) == base) continue;
      const TensorTable& table = *routes_.subscriber->tables().table(s);
      throw Error(
          ErrorCode::kWrongBase,
          fmt::format("what is here for version {} is not what the trainer holds for it", version_),
          fmt::format("route {} of {}, {} tensors from '{}'", transfer.routes[i], source, table.size(), table[0].name));
    }
  }
}

void EngineMember::apply(ShardedReport& report) {
  if (!routes_.subscriber) return;
  for (const ApplyReport& applied : routes_.subscriber->apply()) report.applied += applied.changed;
}

/// Commits the attempt, or rolls it back if it was applied. A rank that cannot roll back has no version afterwards.
void EngineMember::settle(bool committed) {
  if (routes_.subscriber) {
    SubscriberState& subscriber = *routes_.subscriber;
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

void EngineMember::settle_doubt(bool committed) {
  if (!in_doubt_) return;
  settle(committed);
  if (!needs_anchor_) return;
  throw Error(ErrorCode::kDirty, fmt::format("version {} could not be rolled back to {}", last_attempt_, version_),
              fmt::format("engine '{}', rank {}", engine_, rank_));
}

void EngineMember::replace(std::shared_ptr<const Layout> layout, std::shared_ptr<ShardMemory> memory) {
  if (in_doubt_) {
    throw Error(ErrorCode::kUsage,
                fmt::format("whether version {} was committed is not known: regroup() before", last_attempt_));
  }
  routes_ = {};
  layout_ = std::move(layout);
  memory_ = std::move(memory);
}

std::uint64_t EngineMember::audit_next() { return routes_.subscriber ? routes_.subscriber->audit_next() : 0; }

void EngineMember::audit() {
  if (routes_.subscriber) routes_.subscriber->audit();
}

}  // namespace sparsecast
