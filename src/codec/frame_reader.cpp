// SPDX-License-Identifier: Apache-2.0
#include "codec/frame_reader.hpp"

#include <fmt/format.h>

#include <tuple>

#include "codec/block_coding.hpp"
#include "codec/record_layout.hpp"
#include "core/word.hpp"

namespace sparsecast {

using namespace layout;

namespace {

/// The rules of docs/wire-format.md §4 for one directory entry; throws Error{kCorrupt}.
BlockRef read_entry(ConstBytes entry, std::uint32_t tensor, const TensorSpec& spec, const DeltaHeader& delta) {
  BlockRef block;
  block.tensor = tensor;
  block.first_tile = get<std::uint32_t>(entry, 0);
  const auto extent = get<std::uint32_t>(entry, 4);
  block.changed = extent & 0xFFFFFF;
  block.tiles = (extent >> 24) + 1;
  const auto coding = get<std::uint32_t>(entry, 12);
  block.coding = Coding::unpack(coding);
  block.first_element = std::uint64_t{block.first_tile} * kTileElems;

  const std::uint64_t elements = spec.elements();
  if (!run_is_in_tensor(elements, block.first_tile, block.tiles)) {
    corrupt(fmt::format("a block at tile {} reaches beyond the tensor", block.first_tile));
  }
  if (!run_is_in_section(block.first_tile, block.tiles)) {
    corrupt(fmt::format("the block at tile {} crosses a section", block.first_tile));
  }
  block.span = block_span(elements, block.first_tile, block.tiles);
  if (block.changed == 0 || block.changed > block.span) {
    corrupt(fmt::format("{} changes in a block of {} elements", block.changed, block.span));
  }
  const bool context = delta.positions == PositionMode::kContext && block.coding.positions == PositionCodec::kContext;
  if (context ? !is_floating(spec.dtype) || !context_coding_is_possible(coding)
              : !coding_is_possible(coding, delta.values, static_cast<std::uint32_t>(8 * element_size(spec.dtype)))) {
    corrupt(fmt::format("impossible coding {:#x}", coding));
  }
  return block;
}

}  // namespace

FrameHeader check_frame_fields(ConstBytes fixed, std::size_t record_bytes, const std::function<StateDigest()>& words) {
  if (get<std::uint32_t>(fixed, 0) != kFrameMagic) corrupt("not a frame record");
  FrameHeader frame;
  frame.delta_id = get<std::uint64_t>(fixed, 8);
  frame.sequence = get<std::uint32_t>(fixed, 16);
  frame.groups = get<std::uint32_t>(fixed, 20);
  frame.blocks = get<std::uint32_t>(fixed, 24);
  const auto flags = get<std::uint32_t>(fixed, 28);
  frame.stored_bytes = get<std::uint32_t>(fixed, 32);
  frame.body_bytes = get<std::uint32_t>(fixed, 36);
  frame.changed = get<std::uint64_t>(fixed, 40);
  frame.version = get<std::uint64_t>(fixed, 48);
  frame.checksum = get<std::uint64_t>(fixed, 56);
  if (get<std::uint32_t>(fixed, 4) != record_bytes ||
      record_bytes != pad8(kFramePrefix + std::size_t{frame.stored_bytes})) {
    corrupt(fmt::format("frame record has {} bytes, but says {}", record_bytes, get<std::uint32_t>(fixed, 4)));
  }
  if (frame.checksum != frame_checksum(fixed.first(kFramePrefix - 8), words()))
    corrupt("frame checksum does not match");
  if (flags > kCompressedFlag) {
    throw Error(ErrorCode::kUnsupported, fmt::format("frame asks for unknown features {:#x}", flags));
  }
  frame.compressed = flags != 0;
  if (!frame.compressed && frame.stored_bytes != frame.body_bytes) corrupt("frame lengths disagree");
  return frame;
}

FrameHeader parse_frame_header(ConstBytes record) {
  if (record.size() < kFramePrefix) corrupt("not a frame record");
  const FrameHeader frame =
      check_frame_fields(record.first(kFramePrefix), record.size(), [&] { return sum_of_frame_words(record); });
  require_zero(record.subspan(kFramePrefix + frame.stored_bytes), "padding of the frame record");
  return frame;
}

void require_frame_of(const DeltaHeader& delta, const FrameHeader& frame, std::size_t record_bytes) {
  if (frame.delta_id != delta.delta_id || frame.version != delta.version) {
    throw Error(ErrorCode::kForeignStream, "the frame belongs to another delta");
  }
  if (record_bytes > delta.frame_capacity || frame.body_bytes > delta.frame_capacity - kFramePrefix) {
    corrupt("the frame is larger than the announced capacity");
  }
}

/// Refuses a body that is larger than the tensors allow. The limit comes from the tensors, not from the frame's own
/// fields: no block is larger than its dense form plus a few words of directory.
void require_plausible_body(const FrameHeader& frame, const TensorTable& table) {
  const std::uint64_t blocks = table.elements() / kTileElems + 2 * table.size();
  const std::uint64_t limit = 2 * table.bytes() + 64 * blocks + 4096;
  if (frame.body_bytes <= limit) return;
  corrupt(fmt::format("it unfolds to {} bytes, and the tensors need at most {}", frame.body_bytes, limit));
}

FrameReader::FrameReader(ConstBytes record, const DeltaHeader& delta, const TensorTable& table) {
  header_ = parse_frame_header(record);
  try {
    require_frame_of(delta, header_, record.size());
    require_plausible_body(header_, table);
    ConstBytes body = record.subspan(kFramePrefix, header_.stored_bytes);
    if (header_.compressed) {
      decompressed_ = decompress_exact(body, header_.body_bytes);
      body = decompressed_;
    }
    read_directory(body, delta, table);
  } catch (const Error& error) {
    throw error.within(fmt::format("frame {}", header_.sequence));
  }
}

void FrameReader::read_directory(ConstBytes body, const DeltaHeader& delta, const TensorTable& table) {
  const std::uint64_t directory =
      std::uint64_t{header_.groups} * kGroupBytes + std::uint64_t{header_.blocks} * kBlockEntryBytes;
  if (header_.groups == 0 || header_.blocks < header_.groups || directory > body.size()) {
    corrupt(fmt::format("{} groups and {} blocks do not fit", header_.groups, header_.blocks));
  }
  const ConstBytes payload = body.subspan(directory);
  blocks_.reserve(header_.blocks);
  std::size_t entry_at = std::size_t{header_.groups} * kGroupBytes;
  std::uint32_t payload_begin = 0;
  std::uint64_t changed = 0;
  for (std::uint32_t g = 0; g < header_.groups; ++g) {
    const auto tensor = get<std::uint32_t>(body, g * kGroupBytes);
    const auto count = get<std::uint32_t>(body, g * kGroupBytes + 4);
    if (tensor >= table.size()) corrupt(fmt::format("tensor index {} of {}", tensor, table.size()));
    if (!blocks_.empty() && tensor <= blocks_.back().tensor) corrupt("groups are out of order");
    if (count == 0 || count > header_.blocks - blocks_.size()) corrupt("a group's block count is wrong");
    for (std::uint32_t b = 0; b < count; ++b, entry_at += kBlockEntryBytes) {
      const ConstBytes entry = body.subspan(entry_at, kBlockEntryBytes);
      try {
        BlockRef block = read_entry(entry, tensor, table[tensor], delta);
        const auto payload_end = get<std::uint32_t>(entry, 8);
        if (payload_end < payload_begin || payload_end > payload.size() || payload_end % 4 != 0) {
          corrupt(fmt::format("payload [{}, {}) of {} bytes", payload_begin, payload_end, payload.size()));
        }
        block.payload = payload.subspan(payload_begin, payload_end - payload_begin);
        payload_begin = payload_end;
        if (!blocks_.empty() && !follows(blocks_.back(), block)) corrupt("blocks are out of order or overlap");
        changed += block.changed;
        blocks_.push_back(block);
      } catch (const Error& error) {
        throw error.within(fmt::format("tensor '{}': directory entry at body offset {}", table[tensor].name, entry_at));
      }
    }
  }
  if (blocks_.size() != header_.blocks) corrupt("the groups do not add up to the frame's blocks");
  if (payload_begin != payload.size()) corrupt("bytes are left after the last block");
  if (changed != header_.changed) corrupt("the blocks do not add up to the frame's changes");
}

void FrameReader::resolve_context(const TensorTable& table, const std::function<OldBits(const BlockRef&)>& old_of) {
  struct Resolved {
    std::size_t block;
    std::size_t begin;
    std::size_t end;
    Coding coding;
  };
  std::vector<Resolved> done;
  EncodeScratch scratch;
  std::tuple<DecodedBlock<std::uint8_t>, DecodedBlock<std::uint16_t>, DecodedBlock<std::uint32_t>,
             DecodedBlock<std::uint64_t>>
      decoded_of;
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    const BlockRef& block = blocks_[b];
    if (block.coding.positions != PositionCodec::kContext) continue;
    try {
      const OldBits old = old_of(block);
      with_word(element_size(old.dtype), [&]<class T>() {
        auto& decoded = std::get<DecodedBlock<T>>(decoded_of);
        decode_block(block, decoded, &old);
        const BlockChanges<T> changes{decoded.positions.data(), decoded.coded.data(), decoded.count, block.span};
        const std::size_t begin = resolved_.size();
        const Coding coding = encode_block(changes, {PositionMode::kPacked, ValueCodec::kUlp}, scratch, resolved_);
        done.push_back({b, begin, resolved_.size(), coding});
      });
    } catch (const Error& error) {
      throw error.within(describe(header_, block, table));
    }
  }
  for (const Resolved& each : done) {
    blocks_[each.block].coding = each.coding;
    blocks_[each.block].payload = ConstBytes(resolved_).subspan(each.begin, each.end - each.begin);
  }
}

std::string describe(const FrameHeader& frame, const BlockRef& block, const TensorTable& table) {
  return fmt::format("frame {}: tensor '{}': block at element {}", frame.sequence, table[block.tensor].name,
                     block.first_element);
}

std::string describe_base(const DeltaHeader& delta) {
  return fmt::format("version {}, with digest {}", delta.base_version, to_hex(delta.base_digest.value));
}

}  // namespace sparsecast
