// SPDX-License-Identifier: Apache-2.0
#include "sharded/group_sync.hpp"

#include <fmt/format.h>

#include <map>

#include "transport/control/blobs.hpp"

namespace sparsecast {

PublisherSide::PublisherSide(std::shared_ptr<const Layout> layout, std::size_t rank,
                             std::shared_ptr<ShardMemory> memory, ShardedOptions options)
    : layout_(std::move(layout)),
      rank_(rank),
      options_(std::move(options)),
      snapshot_(std::move(memory)),
      version_(options_.version),
      last_attempt_(options_.version) {}

RankInfo PublisherSide::rank_info() const {
  if (snapshot_lost_) {
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

void PublisherSide::met(const Meeting& meeting) {
  if (next_layout_ && next_layout_->hash() == meeting.trainer.participant.layout->hash()) adopt();
  next_layout_.reset();
  if (in_doubt_) settle(meeting.version == last_attempt_);
  last_attempt_ = meeting.last_attempt;
}

void PublisherSide::build(const FanoutPlan& plan, int world_rank) {
  deltas_.clear();
  routes_ = {};
  PublisherOptions publishing{options_.stream, version_, options_.encode, last_attempt_};
  routes_ = make_source_routes(plan, world_rank, snapshot_, publishing);
}

void PublisherSide::adopt() {
  layout_ = std::move(next_layout_);
  next_layout_.reset();
  snapshot_.adopt();
}

std::vector<Bytes> PublisherSide::base_records(const Transfer& transfer) {
  std::vector<Bytes> records;
  for (const std::uint32_t route : transfer.routes) {
    const auto bytes = bytes_of(routes_.publisher->digests()[routes_.stream_of(route)]);
    records.emplace_back(bytes.begin(), bytes.end());
  }
  return records;
}

std::vector<StateDigest> PublisherSide::base_digests(const FanoutPlan& plan) const {
  return source_digests(plan, routes_, routes_.base_digests());
}

std::size_t PublisherSide::begin_attempt() {
  ++last_attempt_;
  deltas_.assign(routes_.numbers.size(), nullptr);
  return routes_.numbers.size();
}

void PublisherSide::publish(const std::function<void()>& published) {
  snapshot_lost_ = true;  // Until it is through.
  routes_.publisher->publish(nullptr, [&](std::size_t stream, const Delta& delta) {
    if (delta.info.version != last_attempt_) {
      throw Error(ErrorCode::kUsage, fmt::format("route {} made version {}, not {}", routes_.numbers[stream],
                                                 delta.info.version, last_attempt_));
    }
    deltas_[stream] = &delta;
    published();
  });
  snapshot_lost_ = false;
}

void PublisherSide::publish_frames() {
  if (!routes_.publisher) return;
  snapshot_lost_ = true;  // Until it is through.
  on_device() ? static_cast<void>(routes_.publisher->publish_on_device())
              : static_cast<void>(routes_.publisher->publish());
  for (std::size_t s = 0; s < deltas_.size(); ++s) deltas_[s] = &routes_.publisher->deltas()[s];
  snapshot_lost_ = false;
}

FrameHead PublisherSide::offer(const Transfer& own, FrameTransfer& transfer, ShardedReport& report) const {
  FrameHead head;
  std::vector<const DeviceDelta*> on_device;
  for (const std::uint32_t route : own.routes) {
    const std::size_t s = routes_.stream_of(route);
    report.changed += deltas_[s]->result.changed;
    if (this->on_device()) {
      const DeviceDelta& delta = *on_device.emplace_back(&routes_.publisher->on_device_deltas()[s]);
      head.add(delta);
      report.sent_bytes += delta.wire_bytes();
      transfer.stream = delta.stream;
    } else {
      head.add(*deltas_[s]);
      report.sent_bytes += deltas_[s]->wire_bytes();
    }
  }
  transfer.head = head.pack();
  transfer.bytes = head.bytes;
  // The transport only reads a source's memory.
  transfer.d_frames = const_cast<std::byte*>(range_of_frames(head, on_device));
  if (transfer.d_frames != nullptr) return head;
  for (std::size_t i = 0; i < own.routes.size(); ++i) {
    const std::size_t s = routes_.stream_of(own.routes[i]);
    const std::vector<std::uint64_t>& offsets = head.streams[i].offsets;
    for (std::size_t f = 0; f < offsets.size(); ++f) {
      const std::byte* const data = this->on_device() ? on_device[i]->frames[f].d_record : deltas_[s]->frames[f].data();
      transfer.pieces.push_back(
          {const_cast<std::byte*>(data), offsets[f], head.streams[i].sizes[f], this->on_device()});
    }
  }
  return head;
}

std::vector<std::vector<DeviceRecord>> PublisherSide::frames_on_device(const Transfer& transfer) const {
  std::vector<std::vector<DeviceRecord>> frames;
  for (const std::uint32_t route : transfer.routes) {
    frames.push_back(routes_.publisher->on_device_deltas()[routes_.stream_of(route)].frames);
  }
  return frames;
}

std::vector<std::vector<Bytes>> PublisherSide::frames_on_host(const Transfer& transfer) {
  routes_.publisher->take_frames();
  std::vector<std::vector<Bytes>> frames;
  for (const std::uint32_t route : transfer.routes) frames.push_back(deltas_[routes_.stream_of(route)]->frames);
  return frames;
}

void PublisherSide::describe(const FanoutPlan& plan, ShardedReport& report) {
  if (!options_.report_tensors) return;
  if (routes_.publisher) routes_.publisher->take_frames();
  std::map<std::uint32_t, SentTensor> tensors;  // By the plan's tensor.
  for (std::size_t i = 0; i < routes_.numbers.size(); ++i) {
    const std::vector<Region>& regions = plan.routes()[routes_.numbers[i]].regions;
    for (const Region& region : regions) {
      SentTensor& sent = tensors[region.tensor];
      sent.name = plan.table()[region.tensor].name;
      sent.elements += region.box.elements();
    }
    const DeltaReport found = report_of(*deltas_[i], *routes_.publisher->tables().table(i));
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

std::vector<Bytes> PublisherSide::records(const Transfer& transfer, ShardedReport& report) {
  std::vector<Bytes> records;
  for (const std::uint32_t route : transfer.routes) {
    const Delta& delta = *deltas_[routes_.stream_of(route)];
    // Copies: a transport must own what it sends, because after a failure it may go on reading it.
    records.push_back(delta.header);
    records.insert(records.end(), delta.frames.begin(), delta.frames.end());
    records.push_back(delta.commit);
    report.sent_bytes += delta.wire_bytes();
    report.changed += delta.result.changed;
  }
  return records;
}

std::vector<StateDigest> PublisherSide::result_digests(const FanoutPlan& plan) const {
  std::vector<StateDigest> results;
  for (const Delta* delta : deltas_) results.push_back(delta->result.result_digest);
  return source_digests(plan, routes_, results);
}

void PublisherSide::settle(bool committed) {
  deltas_.clear();
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
