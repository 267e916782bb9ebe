// SPDX-License-Identifier: Apache-2.0
#include "endpoint/delta_staging.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "codec/record_layout.hpp"

namespace sparsecast {

std::uint64_t most_delta_bytes(std::uint64_t dense_bytes, std::uint64_t tiles) noexcept {
  // No honest delta exceeds the dense bytes by more than 1 %, and a frame holds at least one block. Twice, because a
  // compressed frame is held together with its decoded body.
  return 2 * (dense_bytes + dense_bytes / 32 + tiles * 256) + kMinFrameCapacity;
}

DeltaStaging::DeltaStaging(const TensorTable& table, std::size_t stream, SubscriberBackend& backend)
    : table_(table), stream_(stream), backend_(backend) {
  std::uint64_t tiles = 0;
  for (const TensorSpec& spec : table) tiles += (spec.elements() + kTileElems - 1) / kTileElems;
  block_limit_ = tiles;
  byte_limit_ = most_delta_bytes(table.bytes(), tiles);
}

void DeltaStaging::take(ConstBytes record) {
  switch (peek_record(record).kind) {
    case RecordKind::kHeader:
      break;
    case RecordKind::kTable:
      if (!delta_) throw Error(ErrorCode::kIncomplete, "a table record arrived before its header");
      parse_table(record, delta_->header);
      break;
    case RecordKind::kFrame:
      take_frame(record);
      break;
    case RecordKind::kCommit:
      take_commit(record);
      break;
  }
  check_complete();
}

DeltaHeader DeltaStaging::check_header(ConstBytes record, const HeldState& held) const {
  const DeltaHeader header = parse_header(record);
  if (header.stream != held.stream) {
    throw Error(ErrorCode::kForeignStream,
                fmt::format("stream {} is not ours, {}", to_hex(header.stream), to_hex(held.stream)));
  }
  if (header.table_hash != table_.hash() || header.elements != table_.elements() || header.tensors != table_.size()) {
    throw Error(ErrorCode::kTableMismatch,
                fmt::format("the delta carries another tensor table ({} tensors, {} elements)", header.tensors,
                            header.elements));
  }
  const bool forward = header.version > held.version;
  if (header.version == held.version || (!forward && !held.allow_rollback)) {
    throw Error(ErrorCode::kStaleVersion, fmt::format("version {} is not newer than {}", header.version, held.version));
  }
  if (header.base_version != held.version) {
    throw Error(ErrorCode::kVersionGap, fmt::format("version {} starts from {}, but version {} is here", header.version,
                                                    header.base_version, held.version));
  }
  if (header.base_digest != held.digest) {
    throw Error(ErrorCode::kWrongBase, fmt::format("version {} has other bytes here: digest {}, not {}", held.version,
                                                   to_hex(held.digest.value), to_hex(header.base_digest.value)));
  }
  return header;
}

void DeltaStaging::begin(const DeltaHeader& header, std::size_t record_bytes) {
  backend_.begin_stream(stream_, header);
  delta_.emplace();
  delta_->header = header;
  delta_->bytes = record_bytes;
}

void DeltaStaging::require_room(std::uint64_t bytes) const {
  if (bytes > byte_limit_) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("the delta is larger than {} bytes, more than its table allows", byte_limit_));
  }
}

void DeltaStaging::take_frame(ConstBytes record) {
  if (!delta_) throw Error(ErrorCode::kIncomplete, "a frame arrived before its header");
  const FrameHeader frame = parse_frame_header(record);
  if (frame.delta_id != delta_->header.delta_id) {
    throw Error(ErrorCode::kForeignStream, "the frame belongs to another delta");
  }
  if (frame.sequence >= block_limit_) {
    throw Error(ErrorCode::kCorrupt, fmt::format("frame {} of at most {}", frame.sequence, block_limit_));
  }
  if (const auto found = delta_->frames.find(frame.sequence); found != delta_->frames.end()) {
    if (found->second.checksum == frame.checksum) return;
    throw Error(ErrorCode::kCorrupt, fmt::format("two different frames {}", frame.sequence));
  }
  if (delta_->commit && frame.sequence >= delta_->commit->frames) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("frame {}, but the commit promises {}", frame.sequence, delta_->commit->frames));
  }
  if (delta_->on_device) throw Error(ErrorCode::kUsage, "all frames of this delta came at once, on the device");
  const std::uint64_t size = record.size() + (frame.compressed ? frame.body_bytes : 0);
  require_room(delta_->bytes + size);
  backend_.add(stream_, frame, record);
  delta_->bytes += size;
  delta_->frames.emplace(frame.sequence, frame);
}

void DeltaStaging::check_on_device(std::span<const DeviceRecord> frames) const {
  if (!delta_) throw Error(ErrorCode::kIncomplete, "frames arrived before their header");
  if (delta_->on_device || !delta_->frames.empty()) {
    throw Error(ErrorCode::kUsage, "frames of this delta are staged already");
  }
  if (frames.size() > block_limit_) {
    throw Error(ErrorCode::kCorrupt, fmt::format("frame {} of at most {}", frames.size() - 1, block_limit_));
  }
  if (delta_->commit && frames.size() > delta_->commit->frames) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("frame {}, but the commit promises {}", frames.size() - 1, delta_->commit->frames));
  }
  std::uint64_t size = 0;
  for (const DeviceRecord& frame : frames) size += frame.record_bytes;
  require_room(delta_->bytes + size);
}

void DeltaStaging::take_on_device(std::span<const FrameHeader> frames, std::uint64_t record_bytes) {
  for (const FrameHeader& frame : frames) delta_->frames.emplace(frame.sequence, frame);
  delta_->bytes += record_bytes;
  delta_->on_device = true;
  check_complete();
}

void DeltaStaging::take_commit(ConstBytes record) {
  if (!delta_) throw Error(ErrorCode::kIncomplete, "a commit record arrived before its header");
  const CommitRecord commit = parse_commit(record);
  if (commit.delta_id != delta_->header.delta_id) {
    throw Error(ErrorCode::kForeignStream, "the commit record belongs to another delta");
  }
  if (commit.version != delta_->header.version) throw Error(ErrorCode::kCorrupt, "the commit names another version");
  if (delta_->commit && !std::ranges::equal(pack_commit(*delta_->commit), record)) {
    throw Error(ErrorCode::kCorrupt, "two different commit records");
  }
  delta_->commit = commit;
}

/// Checks that header, commit and frames belong together, once all of them have arrived.
void DeltaStaging::check_complete() {
  if (!delta_ || !delta_->commit || delta_->complete) return;
  const CommitRecord& commit = *delta_->commit;
  if (delta_->frames.size() < commit.frames) return;
  Bytes checksums;
  std::uint64_t changed = 0;
  std::uint64_t bytes = 0;
  std::uint32_t expected = 0;
  bool consistent = delta_->frames.size() == commit.frames;
  for (const auto& [sequence, frame] : delta_->frames) {
    consistent = consistent && sequence == expected++;
    const auto* checksum = reinterpret_cast<const std::byte*>(&frame.checksum);
    checksums.insert(checksums.end(), checksum, checksum + 8);
    changed += frame.changed;
    bytes += layout::pad8(kFramePrefix + std::size_t{frame.stored_bytes});
  }
  if (!consistent || changed != commit.changed || bytes != commit.frame_bytes ||
      xxh3_64(checksums) != commit.frames_hash) {
    throw Error(ErrorCode::kCorrupt, "the commit record does not match the frames");
  }
  delta_->complete = true;
}

CommitRecord DeltaStaging::release() {
  const CommitRecord commit = *delta_->commit;
  delta_.reset();
  return commit;
}

}  // namespace sparsecast
