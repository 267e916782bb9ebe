// SPDX-License-Identifier: Apache-2.0
#pragma once

// Hostile deltas that get past every checksum: records are altered at will and checksummed again.

#include <cstring>
#include <vector>

#include "codec/record_layout.hpp"
#include "reference/reference_blocks.hpp"
#include "support/delta_bytes.hpp"

namespace sparsecast::test {

template <class T>
T field(ConstBytes record, std::size_t offset) {
  T value{};
  if (offset + sizeof(T) <= record.size()) std::memcpy(&value, record.data() + offset, sizeof(T));
  return value;
}

template <class T>
void set_field(Bytes& record, std::size_t offset, T value) {
  if (offset + sizeof(T) <= record.size()) std::memcpy(record.data() + offset, &value, sizeof(T));
}

/// Offsets in the records (docs/wire-format.md §2).
namespace at {
inline constexpr std::size_t kDeltaId = 8;  ///< Offset of the delta id in every record but the header.
inline constexpr std::size_t kHeaderId = 120;
inline constexpr std::size_t kTableStored = 16;
inline constexpr std::size_t kTableChecksum = 40;
inline constexpr std::size_t kTableBody = 48;
inline constexpr std::size_t kFrameSequence = 16;
inline constexpr std::size_t kFrameGroups = 20;
inline constexpr std::size_t kFrameBlocks = 24;
inline constexpr std::size_t kFrameFlags = 28;
inline constexpr std::size_t kFrameStored = 32;
inline constexpr std::size_t kFrameBodyBytes = 36;
inline constexpr std::size_t kFrameChanged = 40;
inline constexpr std::size_t kFrameChecksum = 56;
inline constexpr std::size_t kFrameBody = 64;
inline constexpr std::size_t kCommitFrames = 24;
inline constexpr std::size_t kCommitChanged = 32;
inline constexpr std::size_t kCommitFrameBytes = 40;
inline constexpr std::size_t kCommitDigest = 48;
inline constexpr std::size_t kCommitFramesHash = 64;
inline constexpr std::size_t kCommitChecksum = 88;
}  // namespace at

enum class Sums { kRecompute, kKeep };

/// Makes every checksum right again: header, table (if there is one), frames, commit, which all name the header's id.
/// With kRecompute, the commit's counts and hash are made those of the frames as well. Reads nothing beyond a record.
inline void refresh_checksums(std::vector<Bytes>& records, Sums sums = Sums::kRecompute) {
  Bytes& header = records.front();
  const std::uint64_t id = xxh3_64(ConstBytes(header).first(at::kHeaderId));
  set_field(header, at::kHeaderId, id);
  std::uint64_t changed = 0;
  std::uint64_t frame_bytes = 0;
  std::uint32_t frames = 0;
  Bytes checksums;
  for (std::size_t i = 1; i < records.size(); ++i) {
    Bytes& record = records[i];
    set_field(record, at::kDeltaId, id);
    const char kind = static_cast<char>(record[2]);
    if (kind == 'T' && record.size() >= at::kTableBody) {
      const ConstBytes view(record);
      const std::size_t stored = field<std::uint32_t>(record, at::kTableStored);
      const ConstBytes body = view.subspan(at::kTableBody, std::min(stored, record.size() - at::kTableBody));
      set_field(record, at::kTableChecksum, xxh3_64(body, xxh3_64(view.first(at::kTableChecksum))));
    } else if (kind == 'F' && record.size() >= at::kFrameBody) {
      set_field(record, at::kFrameChecksum, layout::frame_checksum(record));
      ++frames;
      changed += field<std::uint64_t>(record, at::kFrameChanged);
      frame_bytes += record.size();
      checksums.insert(checksums.end(), record.begin() + at::kFrameChecksum, record.begin() + at::kFrameBody);
    } else if (kind == 'C' && record.size() > at::kCommitChecksum) {
      if (sums == Sums::kRecompute) {
        set_field(record, at::kCommitFrames, frames);
        set_field(record, at::kCommitChanged, changed);
        set_field(record, at::kCommitFrameBytes, frame_bytes);
        set_field(record, at::kCommitFramesHash, xxh3_64(checksums));
      }
      set_field(record, at::kCommitChecksum, xxh3_64(ConstBytes(record).first(at::kCommitChecksum)));
    }
  }
}

struct ForgedGroup {
  std::uint32_t tensor = 0;
  std::vector<ReferenceBlock> blocks;
};

/// Content of one frame; its counts follow from the content unless the record overrides them later.
struct ForgedFrame {
  std::vector<ForgedGroup> groups;
  Bytes after_payload;  ///< Belongs to no block.

  Bytes body() const {
    Bytes out;
    const auto put = [&](std::uint32_t value) {
      const auto* bytes = reinterpret_cast<const std::byte*>(&value);
      out.insert(out.end(), bytes, bytes + 4);
    };
    for (const ForgedGroup& group : groups) {
      put(group.tensor);
      put(static_cast<std::uint32_t>(group.blocks.size()));
    }
    std::uint32_t payload_end = 0;
    for (const ForgedGroup& group : groups) {
      for (const ReferenceBlock& block : group.blocks) {
        payload_end += static_cast<std::uint32_t>(block.payload.size());
        put(block.first_tile);
        put(block.changed | (block.tiles - 1) << 24);
        put(payload_end);
        put(block.coding);
      }
    }
    for (const ForgedGroup& group : groups) {
      for (const ReferenceBlock& block : group.blocks)
        out.insert(out.end(), block.payload.begin(), block.payload.end());
    }
    out.insert(out.end(), after_payload.begin(), after_payload.end());
    return out;
  }
};

/// A frame record around any body, without its id and checksum: refresh checksums() adds them.
inline Bytes wrap_body(ConstBytes stored, std::uint32_t sequence, std::uint32_t groups, std::uint32_t blocks,
                       std::uint64_t changed, std::uint64_t version, bool compressed, std::uint32_t body_bytes) {
  Bytes record((at::kFrameBody + stored.size() + 7) / 8 * 8);
  std::memcpy(record.data(), "SCF1", 4);
  set_field(record, 4, static_cast<std::uint32_t>(record.size()));
  set_field(record, at::kFrameSequence, sequence);
  set_field(record, at::kFrameGroups, groups);
  set_field(record, at::kFrameBlocks, blocks);
  set_field(record, at::kFrameFlags, compressed ? 1U : 0U);
  set_field(record, at::kFrameStored, static_cast<std::uint32_t>(stored.size()));
  set_field(record, at::kFrameBodyBytes, body_bytes);
  set_field(record, at::kFrameChanged, changed);
  set_field(record, 48, version);
  if (!stored.empty()) std::memcpy(record.data() + at::kFrameBody, stored.data(), stored.size());
  return record;
}

/// Header, table, the forged frames, commit; everything that can be derived from the frames is.
inline std::vector<Bytes> forge_records(const TensorTable& table, DeltaHeader header,
                                        const std::vector<ForgedFrame>& frames, const StateDigest& result) {
  header.table_hash = table.hash();
  header.elements = table.elements();
  header.tensors = static_cast<std::uint32_t>(table.size());
  if (header.frame_capacity == 0) header.frame_capacity = kMinFrameCapacity;
  std::vector<Bytes> records{pack_header(header)};
  records.push_back(pack_table(table, header.delta_id));
  for (std::uint32_t sequence = 0; sequence < frames.size(); ++sequence) {
    const ForgedFrame& frame = frames[sequence];
    std::uint64_t changed = 0;
    std::uint32_t blocks = 0;
    for (const ForgedGroup& group : frame.groups) {
      blocks += static_cast<std::uint32_t>(group.blocks.size());
      for (const ReferenceBlock& block : group.blocks) changed += block.changed & 0xFFFFFF;
    }
    const Bytes body = frame.body();
    records.push_back(wrap_body(body, sequence, static_cast<std::uint32_t>(frame.groups.size()), blocks, changed,
                                header.version, false, static_cast<std::uint32_t>(body.size())));
  }
  CommitRecord commit;
  commit.version = header.version;
  commit.result_digest = result;
  records.push_back(pack_commit(commit));
  refresh_checksums(records);
  return records;
}

/// The blocks of a whole step as one frame.
inline ForgedFrame frame_of(const TensorTable& table, const TensorState& old_state, const TensorState& new_state,
                            PositionMode positions, ValueCodec values) {
  ForgedFrame frame;
  for (std::uint32_t t = 0; t < table.size(); ++t) {
    ForgedGroup group{t, reference_blocks(table[t], old_state[t], new_state[t], positions, values)};
    if (!group.blocks.empty()) frame.groups.push_back(std::move(group));
  }
  return frame;
}

}  // namespace sparsecast::test
