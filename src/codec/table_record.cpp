// SPDX-License-Identifier: Apache-2.0

// Table records: packing and parsing (docs/wire-format.md §2.2).

#include <fmt/format.h>

#include "codec/record_layout.hpp"

namespace sparsecast {

using namespace layout;

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

}  // namespace sparsecast
