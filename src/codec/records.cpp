// SPDX-License-Identifier: Apache-2.0

// Header, table and commit records: packing and parsing (docs/wire-format.md §2.1, §2.2, §2.4); the compression of the
// content of table and frame records.

#include <fmt/format.h>
#include <zstd.h>

#include "codec/record_layout.hpp"

namespace sparsecast {

using namespace layout;

namespace {

/// Magic, exact size, and the format checks that every fixed record shares.
void require_record(ConstBytes record, std::uint32_t magic_number, std::size_t least, const char* name) {
  if (record.size() < least) corrupt(fmt::format("{} record is cut off: {} bytes", name, record.size()));
  if (get<std::uint32_t>(record, 0) != magic_number) corrupt(fmt::format("not a {} record", name));
  if (get<std::uint32_t>(record, 4) != record.size()) {
    corrupt(fmt::format("{} record says {} bytes, but has {}", name, get<std::uint32_t>(record, 4), record.size()));
  }
}

void start_record(Bytes& record, std::uint32_t magic_number) {
  put(record, 0, magic_number);
  put(record, 4, static_cast<std::uint32_t>(record.size()));
}

}  // namespace

RecordPrefix peek_record(ConstBytes bytes) {
  if (bytes.size() < 8) corrupt("cut off inside a record's first 8 bytes");
  const auto number = get<std::uint32_t>(bytes, 0);
  const auto size = get<std::uint32_t>(bytes, 4);
  RecordPrefix prefix{};
  std::size_t least = 0;
  std::size_t most = 0;
  switch (number) {
    case kHeaderMagic:
      prefix.kind = RecordKind::kHeader;
      least = most = kHeaderBytes;
      break;
    case kTableMagic:
      prefix.kind = RecordKind::kTable;
      least = kTablePrefix;
      most = kTablePrefix + kMaxTableBytes;
      break;
    case kFrameMagic:
      prefix.kind = RecordKind::kFrame;
      least = kFramePrefix;
      most = kMaxFrameCapacity;
      break;
    case kCommitMagic:
      prefix.kind = RecordKind::kCommit;
      least = most = kCommitBytes;
      break;
    default:
      corrupt(fmt::format("unknown record magic {:#010x}", number));
  }
  if (size < least || size > most || size % 8 != 0) corrupt(fmt::format("impossible record size {}", size));
  prefix.bytes = size;
  return prefix;
}

Bytes pack_header(DeltaHeader& header) {
  Bytes record(kHeaderBytes);
  start_record(record, kHeaderMagic);
  put(record, 8, kFormatMajor);
  put(record, 10, kFormatMinor);
  put(record, 16, header.stream);
  put(record, 32, header.version);
  put(record, 40, header.base_version);
  put(record, 48, header.table_hash);
  put(record, 64, header.base_digest.value);
  put(record, 80, header.elements);
  put(record, 88, header.tensors);
  put(record, 92, header.frame_capacity);
  put(record, 96, static_cast<std::uint8_t>(header.positions));
  put(record, 97, static_cast<std::uint8_t>(header.values));
  header.delta_id = xxh3_64(ConstBytes(record).first(120));
  put(record, 120, header.delta_id);
  return record;
}

DeltaHeader parse_header(ConstBytes record) {
  require_record(record, kHeaderMagic, kHeaderBytes, "header");
  if (record.size() != kHeaderBytes) corrupt("header record has the wrong size");
  // The version is checked before the checksum: another format may have its checksum elsewhere.
  const auto major = get<std::uint16_t>(record, 8);
  const auto minor = get<std::uint16_t>(record, 10);
  if (major != kFormatMajor || minor > kFormatMinor) {
    throw Error(ErrorCode::kUnsupported, fmt::format("the delta has format {}.{}, and this build reads format {}.{}",
                                                     major, minor, kFormatMajor, kFormatMinor));
  }
  DeltaHeader header;
  header.delta_id = get<std::uint64_t>(record, 120);
  if (header.delta_id != xxh3_64(record.first(120))) corrupt("header checksum does not match");
  if (const auto flags = get<std::uint32_t>(record, 12); flags != 0) {
    throw Error(ErrorCode::kUnsupported, fmt::format("header asks for unknown features {:#x}", flags));
  }
  header.stream = get_hash(record, 16);
  header.version = get<std::uint64_t>(record, 32);
  header.base_version = get<std::uint64_t>(record, 40);
  header.table_hash = get_hash(record, 48);
  header.base_digest.value = get_hash(record, 64);
  header.elements = get<std::uint64_t>(record, 80);
  header.tensors = get<std::uint32_t>(record, 88);
  header.frame_capacity = get<std::uint32_t>(record, 92);
  const auto mode = get<std::uint8_t>(record, 96);
  const auto values = get<std::uint8_t>(record, 97);
  if (header.frame_capacity < kMinFrameCapacity || header.frame_capacity > kMaxFrameCapacity) {
    corrupt(fmt::format("frame capacity {} is out of range", header.frame_capacity));
  }
  if (mode > 5 || values > 2) corrupt("unknown position mode or value codec");
  header.positions = static_cast<PositionMode>(mode);
  if (mode == 5 && values != 2) corrupt("context positions need ulp values");
  require_zero(record.subspan(98, 22), "reserved header bytes");
  header.values = static_cast<ValueCodec>(values);
  return header;
}

Bytes pack_table(const TensorTable& table, std::uint64_t delta_id) {
  const Bytes raw = table.serialize();
  if (raw.size() > kMaxTableBytes) {
    throw Error(ErrorCode::kUsage,
                fmt::format("the tensor table takes {} bytes, over the limit of 64 MiB", raw.size()));
  }
  const Bytes compressed = compress_smaller(raw, 9);
  const Bytes& stored = compressed.empty() ? raw : compressed;
  Bytes record(pad8(kTablePrefix + stored.size()));
  start_record(record, kTableMagic);
  put(record, 8, delta_id);
  put(record, 16, static_cast<std::uint32_t>(stored.size()));
  put(record, 20, static_cast<std::uint32_t>(raw.size()));
  put(record, 24, compressed.empty() ? 0U : kCompressedFlag);
  put(record, 28, static_cast<std::uint32_t>(table.size()));
  put(record, 40, table_checksum(ConstBytes(record).first(40), stored));
  std::memcpy(record.data() + kTablePrefix, stored.data(), stored.size());
  return record;
}

TensorTable parse_table(ConstBytes record, const DeltaHeader& header) {
  require_record(record, kTableMagic, kTablePrefix, "table");
  const std::size_t stored_bytes = get<std::uint32_t>(record, 16);
  const auto raw_bytes = get<std::uint32_t>(record, 20);
  const auto flags = get<std::uint32_t>(record, 24);
  if (record.size() != pad8(kTablePrefix + stored_bytes)) corrupt("table record has the wrong size");
  const ConstBytes stored = record.subspan(kTablePrefix, stored_bytes);
  if (get<std::uint64_t>(record, 40) != table_checksum(record.first(40), stored))
    corrupt("table checksum does not match");
  if (get<std::uint64_t>(record, 8) != header.delta_id) {
    throw Error(ErrorCode::kForeignStream, "the table record belongs to another delta");
  }
  if (flags > kCompressedFlag || raw_bytes > kMaxTableBytes) corrupt("table record has unknown flags or is too long");
  require_zero(record.subspan(32, 8), "reserved table bytes");
  require_zero(record.subspan(kTablePrefix + stored_bytes), "padding of the table record");
  if (flags == 0 && raw_bytes != stored_bytes) corrupt("table record lengths disagree");
  TensorTable table = flags != 0 ? TensorTable::parse(decompress_exact(stored, raw_bytes)) : TensorTable::parse(stored);
  if (table.hash() != header.table_hash) {
    throw Error(ErrorCode::kTableMismatch, "the table record is not the table that the header names");
  }
  if (table.size() != header.tensors || get<std::uint32_t>(record, 28) != header.tensors ||
      table.elements() != header.elements) {
    corrupt("the counts in header and table record disagree");
  }
  return table;
}

Bytes pack_commit(const CommitRecord& commit) {
  Bytes record(kCommitBytes);
  start_record(record, kCommitMagic);
  put(record, 8, commit.delta_id);
  put(record, 16, commit.version);
  put(record, 24, commit.frames);
  put(record, 32, commit.changed);
  put(record, 40, commit.frame_bytes);
  put(record, 48, commit.result_digest.value);
  put(record, 64, commit.frames_hash);
  put(record, 88, xxh3_64(ConstBytes(record).first(88)));
  return record;
}

CommitRecord parse_commit(ConstBytes record) {
  require_record(record, kCommitMagic, kCommitBytes, "commit");
  if (record.size() != kCommitBytes) corrupt("commit record has the wrong size");
  if (get<std::uint64_t>(record, 88) != xxh3_64(record.first(88))) corrupt("commit checksum does not match");
  if (const auto flags = get<std::uint32_t>(record, 28); flags != 0) {
    throw Error(ErrorCode::kUnsupported, fmt::format("commit asks for unknown features {:#x}", flags));
  }
  require_zero(record.subspan(72, 16), "reserved commit bytes");
  CommitRecord commit;
  commit.delta_id = get<std::uint64_t>(record, 8);
  commit.version = get<std::uint64_t>(record, 16);
  commit.frames = get<std::uint32_t>(record, 24);
  commit.changed = get<std::uint64_t>(record, 32);
  commit.frame_bytes = get<std::uint64_t>(record, 40);
  commit.result_digest.value = get_hash(record, 48);
  commit.frames_hash = get<std::uint64_t>(record, 64);
  return commit;
}

Bytes compress_smaller(ConstBytes raw, int level) {
  Bytes stored(ZSTD_compressBound(raw.size()));
  const std::size_t size = ZSTD_compress(stored.data(), stored.size(), raw.data(), raw.size(), level);
  if (ZSTD_isError(size) != 0 || size >= raw.size()) return {};
  stored.resize(size);
  return stored;
}

Bytes decompress_exact(ConstBytes stored, std::size_t raw_bytes) {
  // The declared size is read before anything is allocated for the content.
  const unsigned long long declared = ZSTD_getFrameContentSize(stored.data(), stored.size());
  const std::size_t frame = ZSTD_findFrameCompressedSize(stored.data(), stored.size());
  if (declared != raw_bytes || ZSTD_isError(frame) != 0 || frame != stored.size()) {
    throw Error(ErrorCode::kCorrupt, "the zstd frame does not hold the announced number of bytes");
  }
  Bytes raw(raw_bytes);
  const std::size_t size = ZSTD_decompress(raw.data(), raw.size(), stored.data(), stored.size());
  if (ZSTD_isError(size) != 0 || size != raw_bytes) {
    throw Error(ErrorCode::kCorrupt, "the zstd frame cannot be decoded");
  }
  return raw;
}

}  // namespace sparsecast
