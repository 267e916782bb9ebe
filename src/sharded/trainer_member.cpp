// SPDX-License-Identifier: Apache-2.0
#include "sharded/group_sync.hpp"

#include <fmt/format.h>

#include <map>

#include "transport/control/blobs.hpp"

namespace sparsecast {

TrainerMember::TrainerMember(std::shared_ptr<const Layout> layout, std::size_t rank,
                             std::shared_ptr<ShardMemory> memory, ShardedOptions options)
    : layout_(std::move(layout)),
      rank_(rank),
      options_(std::move(options)),
      snapshot_(std::move(memory)),
      version_(options_.version),
      last_attempt_(options_.version) {}

RankInfo TrainerMember::rank_info() const {
  if (snapshot_lost_ || (routes_.publisher && routes_.publisher->broken())) {
    throw Error(
        ErrorCode::kDirty,
        "an earlier publish, commit or abort failed half-way: what receivers hold is not known any more. Make new "
        "publishers on all ranks of the trainer, and seed all engines");
  }
  RankInfo own;
  own.role = Role::kTrainer;
  own.group = "trainer";
  own.rank = static_cast<std::uint32_t>(rank_);
  own.version = version_;
  own.in_doubt = in_doubt_ ? last_attempt_ : 0;
  own.last_attempt = last_attempt_;
  own.plan = options_.plan;
  own.set_layouts(*layout_, next_layout_.get());
  return own;
}

void TrainerMember::on_regrouped(const Meeting& meeting) {
  if (next_layout_ && next_layout_->hash() == meeting.trainer.participant.layout->hash()) adopt();
  next_layout_.reset();
  if (in_doubt_) settle(meeting.version == last_attempt_);
  last_attempt_ = meeting.last_attempt;
}

void TrainerMember::build(const FanoutPlan& plan, int world_rank) {
  routes_ = {};
  const PublisherOptions publishing{options_.stream, version_, options_.encode, last_attempt_, {}};
  routes_ = make_source_routes(plan, world_rank, snapshot_, publishing);
}

void TrainerMember::adopt() {
  layout_ = std::move(next_layout_);
  next_layout_.reset();
  snapshot_.adopt();
}

std::vector<Bytes> TrainerMember::base_records(const Transfer& transfer) {
  std::vector<Bytes> records;
  for (const std::uint32_t route : transfer.routes) {
    const auto bytes = bytes_of(routes_.publisher->digests()[routes_.stream_of(route)]);
    records.emplace_back(bytes.begin(), bytes.end());
  }
  return records;
}

std::vector<StateDigest> TrainerMember::base_digests(const FanoutPlan& plan) const {
  return source_digests(plan, routes_, routes_.base_digests());
}

void TrainerMember::describe(const FanoutPlan& plan, ShardedReport& report) {
  if (!routes_.publisher) return;
  if (routes_.publisher->attempt() != last_attempt_) {
    throw Error(ErrorCode::kUsage,
                fmt::format("version {} was made, not {}", routes_.publisher->attempt(), last_attempt_));
  }
  if (!options_.report_tensors) return;
  routes_.publisher->take_frames();
  std::map<std::uint32_t, SentTensor> tensors;  // By index of the tensor in the plan.
  for (std::size_t i = 0; i < routes_.numbers.size(); ++i) {
    const std::vector<Region>& regions = plan.routes()[routes_.numbers[i]].regions;
    for (const Region& region : regions) {
      SentTensor& sent = tensors[region.tensor];
      sent.name = plan.table()[region.tensor].name;
      sent.elements += region.box.elements();
    }
    const DeltaReport found = report_of(routes_.publisher->deltas()[i], *routes_.publisher->tables().table(i));
    for (std::size_t codec = 0; codec < std::size(found.blocks_by_codec); ++codec) {
      report.blocks_by_codec[codec] += found.blocks_by_codec[codec];
    }
    for (const DeltaReport::Tensor& tensor : found.tensors) {
      SentTensor& sent = tensors[regions[tensor.index].tensor];
      sent.changed += tensor.changed;
      sent.bytes += tensor.bytes;
      sent.dense_blocks += tensor.dense_blocks;
      sent.blocks += tensor.blocks;
    }
  }
  for (auto& [index, sent] : tensors) report.tensors.push_back(std::move(sent));
}

std::vector<StateDigest> TrainerMember::result_digests(const FanoutPlan& plan) const {
  std::vector<StateDigest> results;
  if (routes_.publisher) {
    for (const Delta& delta : routes_.publisher->deltas()) results.push_back(delta.result.result_digest);
  }
  return source_digests(plan, routes_, results);
}

void TrainerMember::settle(bool committed) {
  if (routes_.publisher && routes_.publisher->pending()) {
    const bool lost = snapshot_lost_;
    snapshot_lost_ = true;
    if (committed) {
      routes_.publisher->commit(last_attempt_);
    } else {
      routes_.publisher->abort(last_attempt_);
    }
    snapshot_lost_ = lost;
  }
  if (committed) version_ = last_attempt_;
  in_doubt_ = false;
}

}  // namespace sparsecast
