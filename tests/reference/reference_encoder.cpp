// SPDX-License-Identifier: Apache-2.0
#include "reference/reference_encoder.hpp"

#include <zstd.h>

#include <algorithm>

#include "reference/reference_blocks.hpp"

namespace sparsecast {
namespace {

/// A record or a part of one, written field by field.
class Fields {
 public:
  Fields& put(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) bytes_.push_back(static_cast<std::byte>(value >> (8 * i) & 0xFF));
    return *this;
  }
  Fields& u8(std::uint64_t value) { return put(value, 1); }
  Fields& u16(std::uint64_t value) { return put(value, 2); }
  Fields& u32(std::uint64_t value) { return put(value, 4); }
  Fields& u64(std::uint64_t value) { return put(value, 8); }
  Fields& h128(const Hash128& value) { return u64(value.lo).u64(value.hi); }
  Fields& magic(const char* text) {
    for (int i = 0; i < 4; ++i) u8(static_cast<unsigned char>(text[i]));
    return *this;
  }
  Fields& zeros(std::size_t count) {
    bytes_.resize(bytes_.size() + count);
    return *this;
  }
  Fields& append(ConstBytes bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  std::size_t size() const { return bytes_.size(); }
  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

__extension__ using Wide = unsigned __int128;

/// §6
Wide mix(const Hash128& key, std::uint64_t i, std::uint64_t u, unsigned w) {
  const auto low = [](std::uint64_t x) { return x % (std::uint64_t{1} << 32); };
  const auto high = [](std::uint64_t x) { return x / (std::uint64_t{1} << 32); };
  constexpr std::uint64_t kUp = std::uint64_t{1} << 32;
  std::uint64_t x = key.lo + (i + 1) * 0x9E3779B97F4A7C15U;
  x = (low(x) * 0xBB67AE86U) ^ x ^ key.hi;
  x = (high(x) * 0xA54FF53BU) ^ (low(x) * kUp);
  x = (high(x) * 0x9B05688DU) ^ (low(x) * kUp);
  const auto triangle = [](std::uint64_t v, unsigned bits) { return v * (v + 1) / 2 % (std::uint64_t{1} << bits); };
  const std::uint64_t b = w == 64 ? high(u) * kUp + triangle(low(low(u) + high(u)), 32) : triangle(u, w);
  return static_cast<Wide>(x | 1) * b;
}

std::size_t padded(std::size_t bytes) { return (bytes + 7) / 8 * 8; }

/// §2.1
Bytes header_record(const TensorTable& table, const DeltaHeader& header, const EncodeOptions& options) {
  Fields record;
  record.magic("SCH1").u32(128).u16(1).u16(0).u32(0);
  record.h128(header.stream).u64(header.version).u64(header.base_version);
  record.h128(table.hash()).h128(header.base_digest.value);
  record.u64(table.elements()).u32(table.size()).u32(options.frame_capacity);
  record.u8(static_cast<std::uint8_t>(options.positions)).u8(static_cast<std::uint8_t>(options.values)).zeros(22);
  record.u64(xxh3_64(record.bytes()));
  return record.bytes();
}

/// The blocks of one frame, in order, each with its tensor.
struct FrameContent {
  std::vector<std::pair<std::size_t, ReferenceBlock>> blocks;

  std::size_t groups() const {
    std::size_t count = 0;
    for (std::size_t i = 0; i < blocks.size(); ++i) count += i == 0 || blocks[i].first != blocks[i - 1].first ? 1 : 0;
    return count;
  }
  std::size_t body_bytes() const {
    std::size_t bytes = 8 * groups() + 16 * blocks.size();
    for (const auto& [tensor, block] : blocks) bytes += block.payload.size();
    return bytes;
  }
  /// §2.3: groups, entries, payload.
  Bytes body() const {
    Fields out;
    for (std::size_t i = 0; i < blocks.size();) {
      std::size_t end = i;
      while (end < blocks.size() && blocks[end].first == blocks[i].first) ++end;
      out.u32(blocks[i].first).u32(end - i);
      i = end;
    }
    std::size_t payload_end = 0;
    for (const auto& [tensor, block] : blocks) {
      payload_end += block.payload.size();
      out.u32(block.first_tile).u32(block.changed | (block.tiles - 1) << 24).u32(payload_end).u32(block.coding);
    }
    for (const auto& [tensor, block] : blocks) out.append(block.payload);
    return out.bytes();
  }
  std::uint64_t changed() const {
    std::uint64_t sum = 0;
    for (const auto& [tensor, block] : blocks) sum += block.changed;
    return sum;
  }
};

/// §5.5
std::vector<FrameContent> cut_into_frames(const TensorTable& table, std::span<const ConstBytes> old_state,
                                          std::span<const ConstBytes> new_state, const EncodeOptions& options) {
  const bool quick = options.positions == PositionMode::kAuto &&
                     (!options.objective || options.objective->link_bytes_per_second >= 1.28e9);
  std::vector<FrameContent> frames;
  for (std::size_t t = 0; t < table.size(); ++t) {
    for (ReferenceBlock& block : reference_blocks(table[t], old_state[t], new_state[t], options.positions,
                                                  options.values, options.block_changes, quick)) {
      if (frames.empty()) frames.emplace_back();
      frames.back().blocks.emplace_back(t, block);
      if (frames.back().blocks.size() > 1 && padded(64 + frames.back().body_bytes()) > options.frame_capacity) {
        frames.back().blocks.pop_back();
        frames.emplace_back().blocks.emplace_back(t, std::move(block));
      }
    }
  }
  return frames;
}

Bytes compressed_if_smaller(const Bytes& body, int level) {
  if (level == 0) return {};
  Bytes out(ZSTD_compressBound(body.size()));
  const std::size_t size = ZSTD_compress(out.data(), out.size(), body.data(), body.size(), level);
  if (ZSTD_isError(size) != 0 || size >= body.size()) return {};
  out.resize(size);
  return out;
}

struct ChecksummedFrame {
  Bytes record;
  std::uint64_t checksum = 0;
};

/// §2.3
ChecksummedFrame frame_record(const FrameContent& frame, std::size_t sequence, std::uint64_t delta_id,
                              std::uint64_t version, int zstd_level) {
  const Bytes body = frame.body();
  const Bytes compressed = compressed_if_smaller(body, zstd_level);
  const Bytes& stored = compressed.empty() ? body : compressed;
  Fields record;
  record.magic("SCF1").u32(padded(64 + stored.size())).u64(delta_id);
  record.u32(sequence).u32(frame.groups()).u32(frame.blocks.size()).u32(compressed.empty() ? 0 : 1);
  record.u32(stored.size()).u32(body.size()).u64(frame.changed()).u64(version);
  Fields words;
  words.append(stored).zeros(padded(stored.size()) - stored.size());
  Wide sum = 0;
  for (std::size_t i = 0; i < words.size() / 8; ++i)
    sum += mix({}, i, reference_element(words.bytes(), DType::kI64, i), 64);
  const Fields checksummed = Fields().u64(static_cast<std::uint64_t>(sum)).u64(static_cast<std::uint64_t>(sum >> 64));
  const std::uint64_t checksum = xxh3_64(checksummed.bytes(), xxh3_64(record.bytes()));
  record.u64(checksum).append(words.bytes());
  return {record.bytes(), checksum};
}

/// Returns the index at which element `i` of a tensor counts in the digest.
std::uint64_t reference_index(const TensorSpec& spec, const DigestOrigin& origin, std::uint64_t i) {
  if (origin.strides.empty()) return origin.first + i;
  std::uint64_t index = origin.first;
  for (std::size_t d = spec.shape.size(); d > 0; --d) {
    index += i % spec.shape[d - 1] * static_cast<std::uint64_t>(origin.strides[d - 1]);
    i /= spec.shape[d - 1];
  }
  return index;
}

}  // namespace

StateDigest reference_digest(const TensorTable& table, std::span<const ConstBytes> tensors) {
  Wide digest = 0;
  for (std::size_t t = 0; t < table.size(); ++t) {
    for (std::uint64_t i = 0; i < table[t].elements(); ++i) {
      const std::uint64_t index = reference_index(table[t], table.digest_origin(t), i);
      const DType dtype = table[t].dtype;
      const auto width = static_cast<unsigned>(8 * element_size(dtype));
      digest += mix(table.digest_key(t), index, reference_element(tensors[t], dtype, i), width);
    }
  }
  return {{static_cast<std::uint64_t>(digest), static_cast<std::uint64_t>(digest >> 64)}};
}

std::vector<Bytes> reference_encode(const TensorTable& table, std::span<const ConstBytes> old_state,
                                    std::span<const ConstBytes> new_state, const DeltaHeader& header,
                                    const EncodeOptions& options) {
  std::vector<Bytes> records{header_record(table, header, options)};
  const std::uint64_t delta_id = xxh3_64(ConstBytes(records[0]).first(120));

  std::uint64_t changed = 0;
  std::uint64_t frame_bytes = 0;
  Fields checksums;
  const std::vector<FrameContent> frames = cut_into_frames(table, old_state, new_state, options);
  for (std::size_t sequence = 0; sequence < frames.size(); ++sequence) {
    ChecksummedFrame frame = frame_record(frames[sequence], sequence, delta_id, header.version, options.zstd_level);
    changed += frames[sequence].changed();
    frame_bytes += frame.record.size();
    checksums.u64(frame.checksum);
    records.push_back(std::move(frame.record));
  }

  // §2.4
  Fields commit;
  commit.magic("SCC1").u32(96).u64(delta_id).u64(header.version).u32(frames.size()).u32(0);
  commit.u64(changed).u64(frame_bytes).h128(reference_digest(table, new_state).value);
  commit.u64(xxh3_64(checksums.bytes())).zeros(16);
  commit.u64(xxh3_64(commit.bytes()));
  records.push_back(commit.bytes());
  return records;
}

}  // namespace sparsecast
