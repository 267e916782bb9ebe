// SPDX-License-Identifier: Apache-2.0
#include "codec/frame_writer.hpp"

#include <utility>

#include "codec/record_layout.hpp"

namespace sparsecast {

using namespace layout;

namespace {

void append_to(Bytes& to, ConstBytes bytes) { to.insert(to.end(), bytes.begin(), bytes.end()); }

}  // namespace

FrameWriter::FrameWriter(const DeltaHeader& header, int zstd_level, RecordSink sink)
    : header_(header), zstd_level_(zstd_level), sink_(std::move(sink)) {
  commit_.delta_id = header.delta_id;
  commit_.version = header.version;
}

void FrameWriter::append(std::uint32_t tensor, const SectionBlocks& section) {
  for (const EncodedBlock& block : section.blocks) {
    append_block(tensor, block, ConstBytes(section.payload).subspan(block.payload_begin, block.payload_bytes));
  }
}

void FrameWriter::append_block(std::uint32_t tensor, const EncodedBlock& block, ConstBytes payload) {
  const bool new_group = groups_.empty() || groups_[groups_.size() - 2] != tensor;
  const std::size_t size = kFramePrefix + (groups_.size() + entries_.size()) * 4 + payload_.size() +
                           (new_group ? kGroupBytes : 0) + kBlockEntryBytes + payload.size();
  if (!entries_.empty() && pad8(size) > header_.frame_capacity) {
    flush();
    append_block(tensor, block, payload);
    return;
  }
  if (payload_.capacity() == 0) {
    // Growing by halves would copy, and touch, the payload twice. Two bits an element are enough below 10 % of changes.
    payload_.reserve(std::min<std::uint64_t>(
        {header_.frame_capacity, EncodeOptions{}.frame_capacity, header_.elements / 4 + kTileElems}));
  }
  if (new_group) groups_.insert(groups_.end(), {tensor, 0});
  ++groups_.back();
  payload_.insert(payload_.end(), payload.begin(), payload.end());
  entries_.insert(entries_.end(), {block.first_tile, block.changed | (block.tiles - 1) << 24,
                                   static_cast<std::uint32_t>(payload_.size()), block.coding});
  changed_ += block.changed;
}

void FrameWriter::flush() {
  if (entries_.empty()) return;
  const std::size_t body_bytes = (groups_.size() + entries_.size()) * 4 + payload_.size();
  const std::size_t record_bytes = pad8(kFramePrefix + body_bytes);
  Bytes head(kFramePrefix);
  append_to(head, std::as_bytes(std::span(groups_)));
  append_to(head, std::as_bytes(std::span(entries_)));
  Bytes record = std::exchange(payload_, {});  // Reused in place: a second buffer would be touched page by page.
  record.insert(record.begin(), head.begin(), head.end());
  record.resize(record_bytes);

  std::size_t stored_bytes = body_bytes;
  bool compressed = false;
  if (zstd_level_ > 0) {
    const Bytes stored = compress_smaller(ConstBytes(record).subspan(kFramePrefix, body_bytes), zstd_level_);
    if (!stored.empty()) {
      compressed = true;
      stored_bytes = stored.size();
      record.assign(pad8(kFramePrefix + stored_bytes), std::byte{0});
      std::memcpy(record.data() + kFramePrefix, stored.data(), stored_bytes);
    }
  }
  FrameHeader fields;
  fields.delta_id = header_.delta_id;
  fields.sequence = commit_.frames;
  fields.groups = static_cast<std::uint32_t>(groups_.size() / 2);
  fields.blocks = static_cast<std::uint32_t>(entries_.size() / 4);
  fields.compressed = compressed;
  fields.stored_bytes = static_cast<std::uint32_t>(stored_bytes);
  fields.body_bytes = static_cast<std::uint32_t>(body_bytes);
  fields.changed = changed_;
  fields.version = header_.version;
  put_frame_fields(record, fields);
  const std::uint64_t checksum = frame_checksum(record);
  put(record, 56, checksum);

  const auto* checksum_bytes = reinterpret_cast<const std::byte*>(&checksum);
  checksums_.insert(checksums_.end(), checksum_bytes, checksum_bytes + 8);
  ++commit_.frames;
  commit_.changed += changed_;
  commit_.frame_bytes += record.size();
  sink_(std::move(record));
  groups_.clear();
  entries_.clear();
  changed_ = 0;
}

CommitRecord FrameWriter::finish() {
  flush();
  commit_.frames_hash = xxh3_64(checksums_);
  return commit_;
}

}  // namespace sparsecast
