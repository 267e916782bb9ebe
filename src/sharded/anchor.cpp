// SPDX-License-Identifier: Apache-2.0

// An anchor is a delta of raw values in which every element is named; its blocks are dense, so its size is that of the
// elements. Each record is a broadcast of its own, and a route ends with its commit record:
//
//     for each transfer of the plan:   for each of its routes:   HEADER, FRAME*, COMMIT

#include "sharded/group_sync.hpp"

#include <fmt/format.h>

#include <memory>
#include <numeric>

#include "codec/frame_reader.hpp"
#include "memory/encoder.hpp"
#include "sharded/route_endpoints.hpp"

namespace sparsecast {
namespace {

/// Detector that reports every element as changed, so that an anchor has all elements.
class WholeTensorDetector final : public TileDetector {
 public:
  WholeTensorDetector(const TensorTable& table, RegionReader& reader) : table_(table), reader_(reader) {}

  TileView detect(std::size_t tensor, std::uint64_t first, std::uint32_t count, TileWorkspace& workspace) override {
    std::iota(workspace.positions, workspace.positions + count, 0U);
    TileView view;
    view.changed = count;
    view.current = reader_.read(tensor, first, count, workspace.kept);
    return view;
  }
  TensorRef current(std::size_t tensor) const override {
    throw Error(ErrorCode::kUnsupported, "an anchor is read tile by tile",
                fmt::format("tensor '{}'", table_[tensor].name));
  }
  bool knows_old() const noexcept override { return false; }

 private:
  const TensorTable& table_;
  RegionReader& reader_;
};

/// Writes one route of an anchor into the destinations of this rank, if it has any.
class RouteWriter {
 public:
  /// Creates the writer of a route; `memory` is null on a rank that receives nothing.
  RouteWriter(const FanoutPlan& plan, std::uint32_t route, int rank, ShardMemory* memory) {
    memory_ = memory;
    if (memory == nullptr) return;
    const std::vector<Destination> destinations = own_destinations(plan.routes()[route], rank);
    if (!destinations.empty()) table_ = plan.route_table(route);
    for (const Destination& destination : destinations) {
      places_.push_back(memory->memory().make_writer(table_, destination_tensors(plan, route, destination, *memory)));
    }
  }

  /// Takes the next record of the route. Returns true when more records follow, and false after the last one.
  bool take(ConstBytes record, std::uint64_t version) {
    const RecordPrefix prefix = peek_record(record);
    if (places_.empty()) return prefix.kind != RecordKind::kCommit;
    if (prefix.kind == RecordKind::kHeader) {
      header_ = parse_header(record);
      if (header_.table_hash != table_.hash() || header_.version != version) {
        throw Error(ErrorCode::kTableMismatch,
                    fmt::format("an anchor of version {} and of other tensors came", header_.version));
      }
    } else if (prefix.kind == RecordKind::kFrame) {
      write(record);
    } else if (prefix.kind == RecordKind::kCommit) {
      finish(parse_commit(record));
      return false;
    }
    return true;
  }

 private:
  void write(ConstBytes record) {
    const FrameReader frame(record, header_, table_);
    if (frame.header().sequence != frames_) {
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("frame {} of the anchor came as number {}", frame.header().sequence, frames_));
    }
    ++frames_;
    changed_ += frame.header().changed;
    memory_->begin_anchor();
    for (const BlockRef& block : frame.blocks()) {
      for (const auto& place : places_) place->write(block);
    }
  }

  void finish(const CommitRecord& commit) const {
    if (commit.delta_id != header_.delta_id || commit.frames != frames_ || changed_ != table_.elements()) {
      throw Error(ErrorCode::kCorrupt, fmt::format("the anchor ended after {} frames and {} of {} elements", frames_,
                                                   changed_, table_.elements()));
    }
    for (const auto& place : places_) place->finish();
  }

  ShardMemory* memory_ = nullptr;
  TensorTable table_;
  std::vector<std::unique_ptr<RegionWriter>> places_;  ///< One writer per destination of this rank.
  DeltaHeader header_;
  std::uint32_t frames_ = 0;
  std::uint64_t changed_ = 0;
};

/// Calls deliver(record) for each record of the route.
template <class Deliver>
void make_records(const TensorTable& table, RegionReader& held, std::uint64_t version, const EncodeOptions& options,
                  const Deliver& deliver) {
  EncodeOptions encode = options;
  encode.values = ValueCodec::kRaw;
  encode.positions = PositionMode::kAuto;
  encode.threads = 1;  // One section at a time, because a dense section is as large as its elements.
  WholeTensorDetector detector(table, held);
  DeltaHeader header = make_header(table, encode, {}, version, version, {});
  deliver(pack_header(header));
  const EncodedFrames encoded = encode_frames(table, detector, header, encode, false, false, deliver);
  deliver(pack_commit(encoded.commit));
}

}  // namespace

void exchange_anchor(GroupTransports& wire, const AnchorRoles& roles, std::uint64_t version,
                     const EncodeOptions& options, Deadline deadline) {
  const FanoutPlan& plan = wire.plan();
  for (const Transfer* const transfer : wire.transfers()) {
    for (const std::uint32_t route : transfer->routes) {
      RouteWriter writer(plan, route, wire.rank(), roles.receives);
      if (wire.is_source(*transfer)) {
        std::vector<Allocation> scratch;
        const TensorTable table = plan.route_table(route);
        const auto reader =
            roles.sends->memory().memory().make_reader(table, roles.sends->held_for_anchor(plan, route, scratch));
        make_records(table, *reader, version, options, [&](Bytes&& record) {
          writer.take(record, version);
          std::vector<Bytes> records;
          records.push_back(std::move(record));
          wire.broadcast(*transfer, records, deadline);
        });
        continue;
      }
      for (bool more = true; more;) {
        std::vector<Bytes> records;
        wire.broadcast(*transfer, records, deadline);
        if (records.size() != 1) {
          throw Error(ErrorCode::kCorrupt, fmt::format("{} records of an anchor came at once", records.size()));
        }
        more = writer.take(records.front(), version);
      }
    }
  }
}

}  // namespace sparsecast
