// SPDX-License-Identifier: Apache-2.0
#pragma once

// Offsets of the records (docs/wire-format.md §2), their little-endian fields, and the compression of their content.
// Reader and writer share only this file.

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>

#include "codec/block.hpp"
#include "sparsecast/delta.hpp"
#include "sparsecast/digest.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast {

/// Returns `raw` compressed to one zstd frame, or an empty result when the frame would not be smaller than `raw`.
Bytes compress_smaller(ConstBytes raw, int level);

/// Returns the content of the zstd frame `stored`. Throws Error{kCorrupt} unless `stored` is exactly one frame with
/// `raw_bytes` bytes of content; never decompresses more bytes.
Bytes decompress_exact(ConstBytes stored, std::size_t raw_bytes);

}  // namespace sparsecast

namespace sparsecast::layout {

constexpr std::uint32_t magic(const char (&text)[5]) {
  return static_cast<std::uint32_t>(text[0]) | static_cast<std::uint32_t>(text[1]) << 8 |
         static_cast<std::uint32_t>(text[2]) << 16 | static_cast<std::uint32_t>(text[3]) << 24;
}

inline constexpr std::uint32_t kHeaderMagic = magic("SCH1");
inline constexpr std::uint32_t kTableMagic = magic("SCT1");
inline constexpr std::uint32_t kFrameMagic = magic("SCF1");
inline constexpr std::uint32_t kCommitMagic = magic("SCC1");

inline constexpr std::size_t kHeaderBytes = 128;
inline constexpr std::size_t kTablePrefix = 48;
using sparsecast::kFramePrefix;
inline constexpr std::size_t kCommitBytes = 96;
inline constexpr std::uint16_t kFormatMajor = 1;
inline constexpr std::uint16_t kFormatMinor = 0;
inline constexpr std::uint32_t kMaxTableBytes = 1U << 26;
inline constexpr std::uint32_t kCompressedFlag = 1;

constexpr std::size_t pad8(std::size_t bytes) { return (bytes + 7) / 8 * 8; }

template <class T>
void put(Bytes& record, std::size_t offset, T value) {
  std::memcpy(record.data() + offset, &value, sizeof(T));
}
inline void put(Bytes& record, std::size_t offset, const Hash128& value) {
  put(record, offset, value.lo);
  put(record, offset + 8, value.hi);
}

template <class T>
T get(ConstBytes record, std::size_t offset) {
  T value;
  std::memcpy(&value, record.data() + offset, sizeof(T));
  return value;
}
inline Hash128 get_hash(ConstBytes record, std::size_t offset) {
  return {get<std::uint64_t>(record, offset), get<std::uint64_t>(record, offset + 8)};
}

[[noreturn]] inline void corrupt(const std::string& message) { throw Error(ErrorCode::kCorrupt, message); }

inline void require_zero(ConstBytes bytes, const char* what) {
  for (const std::byte b : bytes) {
    if (b != std::byte{0}) corrupt(std::string(what) + " must be zero");
  }
}

/// Returns the checksum of a TABLE record: the XXH3-64 of its stored bytes, seeded with the XXH3-64 of its fixed
/// fields.
inline std::uint64_t table_checksum(ConstBytes fixed, ConstBytes stored) { return xxh3_64(stored, xxh3_64(fixed)); }

/// Returns the checksum of a FRAME record (docs/wire-format.md §2.3) from `fixed`, its first 56 bytes, and `words`, the
/// sum of the words after its fixed fields (sum_of_frame_words), which a device can compute in parallel.
inline std::uint64_t frame_checksum(ConstBytes fixed, const StateDigest& words) {
  const auto sum = std::bit_cast<std::array<std::byte, 16>>(std::array{words.value.lo, words.value.hi});
  return xxh3_64(sum, xxh3_64(fixed));
}
/// Returns the sum of the 64-bit words after the fixed fields of a FRAME record: the state digest of a tensor with key
/// 0 of these words (add_frame_word).
inline StateDigest sum_of_frame_words(ConstBytes record) {
  return digest_span(Hash128{}, DType::kI64, 0, record.subspan(kFramePrefix));
}
/// Returns the checksum of a FRAME record, computed from the whole record.
inline std::uint64_t frame_checksum(ConstBytes record) {
  return frame_checksum(record.first(kFramePrefix - 8), sum_of_frame_words(record));
}

/// Writes the fixed fields of a FRAME record, except the checksum, to the beginning of `record`.
inline void put_frame_fields(Bytes& record, const FrameHeader& fields) {
  put(record, 0, kFrameMagic);
  put(record, 4, static_cast<std::uint32_t>(pad8(kFramePrefix + fields.stored_bytes)));
  put(record, 8, fields.delta_id);
  put(record, 16, fields.sequence);
  put(record, 20, fields.groups);
  put(record, 24, fields.blocks);
  put(record, 28, fields.compressed ? kCompressedFlag : 0U);
  put(record, 32, fields.stored_bytes);
  put(record, 36, fields.body_bytes);
  put(record, 40, fields.changed);
  put(record, 48, fields.version);
}

/// Throws Error{kCorrupt} unless a record has at least `least` bytes, begins with this magic number, and has the size
/// that its second field says. `name` is the kind of record, for error messages.
inline void require_record(ConstBytes record, std::uint32_t magic_number, std::size_t least, const char* name) {
  if (record.size() < least) corrupt(fmt::format("{} record is cut off: {} bytes", name, record.size()));
  if (get<std::uint32_t>(record, 0) != magic_number) corrupt(fmt::format("not a {} record", name));
  if (get<std::uint32_t>(record, 4) != record.size()) {
    corrupt(fmt::format("{} record says {} bytes, but has {}", name, get<std::uint32_t>(record, 4), record.size()));
  }
}

inline void start_record(Bytes& record, std::uint32_t magic_number) {
  put(record, 0, magic_number);
  put(record, 4, static_cast<std::uint32_t>(record.size()));
}

}  // namespace sparsecast::layout
