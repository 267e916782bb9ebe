// SPDX-License-Identifier: Apache-2.0

// Header and commit records, and the prefix that all records share: packing and parsing (docs/wire-format.md §2.1,
// §2.4).

#include <fmt/format.h>

#include "codec/record_layout.hpp"

namespace sparsecast {

using namespace layout;

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

}  // namespace sparsecast
