// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/count_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "sparsecast/digest.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

constexpr std::uint32_t kTableMagic = 0x31544353;  // "SCT1"
constexpr std::uint32_t kTableProtocol = 1;

std::uint64_t checksum_of(const CountTable& table) {
  const auto bytes = std::as_bytes(std::span(&table, 1));
  return xxh3_64(std::as_bytes(std::span(table.sizes)), xxh3_64(bytes.first(offsetof(CountTable, checksum))));
}

const char* name_of(TableKind kind) { return kind == TableKind::kHostRecords ? "host records" : "frames"; }

ConstBytes rest_of(ConstBytes head, std::size_t room) { return head.subspan(std::min(head.size(), room)); }

CountTable empty_table(TableKind kind, std::uint64_t sequence) {
  CountTable table;
  table.magic = kTableMagic;
  table.kind = kind;
  table.protocol = kTableProtocol;
  table.sequence = sequence;
  return table;
}

}  // namespace

CountTable make_table(std::uint64_t sequence, std::span<const std::uint64_t> sizes) {
  CountTable table = empty_table(TableKind::kHostRecords, sequence);
  table.count = sizes.size();
  table.total = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  std::copy_n(sizes.begin(), std::min(sizes.size(), kTableSizes), table.sizes.begin());
  table.checksum = checksum_of(table);
  return table;
}

CountTable make_head_table(std::uint64_t sequence, ConstBytes head, std::uint64_t frame_bytes, std::size_t room) {
  CountTable table = empty_table(TableKind::kFrames, sequence);
  table.count = head.size();
  table.total = frame_bytes;
  table.rest_hash = xxh3_64(rest_of(head, room));
  std::ranges::copy(head.first(std::min(head.size(), room)), std::as_writable_bytes(std::span(table.sizes)).begin());
  table.checksum = checksum_of(table);
  return table;
}

CountTable make_error_table(std::uint64_t sequence, std::uint32_t error_code) {
  CountTable table = empty_table(TableKind::kFrames, sequence);
  table.error_code = error_code;
  table.checksum = checksum_of(table);
  return table;
}

void check_table(const CountTable& table, TableKind kind, std::uint64_t sequence, const TableLimits& limits) {
  if (table.magic != kTableMagic || table.checksum != checksum_of(table)) {
    throw Error(ErrorCode::kCorrupt, "the count table is damaged, or no count table");
  }
  if (table.protocol != kTableProtocol) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("a count table of protocol {}, this end speaks {}", table.protocol, kTableProtocol));
  }
  if (table.kind != kind || table.sequence != sequence) {
    throw Error(ErrorCode::kGroupMismatch,
                fmt::format("the ranks are at different steps: the source sends {} of its broadcast {}, this rank "
                            "expects {} of broadcast {}",
                            name_of(table.kind), table.sequence, name_of(kind), sequence));
  }
  if (table.error_code != 0 && (kind != TableKind::kFrames || table.count != 0 || table.total != 0)) {
    throw Error(ErrorCode::kCorrupt, "a count table with an error announces something");
  }
  if (table.count > limits.max_count || table.total > limits.max_bytes) {
    const char* const what = kind == TableKind::kHostRecords ? "records" : "bytes of their head";
    throw Error(ErrorCode::kCorrupt,
                fmt::format("the source announces {} of {} bytes and {} {}; at most {} and {} are taken", name_of(kind),
                            table.total, table.count, what, limits.max_bytes, limits.max_count));
  }
}

std::vector<std::uint64_t> sizes_of(const CountTable& table) {
  std::vector<std::uint64_t> sizes(static_cast<std::size_t>(table.count));
  std::copy_n(table.sizes.begin(), std::min(sizes.size(), kTableSizes), sizes.begin());
  return sizes;
}

void check_sizes(const CountTable& table, std::span<const std::uint64_t> sizes) {
  std::uint64_t total = 0;
  for (const std::uint64_t size : sizes) {
    // Compared so that the sum cannot overflow.
    if (size > table.total - total) throw Error(ErrorCode::kCorrupt, "the sizes of the count table do not add up");
    total += size;
  }
  if (total != table.total) throw Error(ErrorCode::kCorrupt, "the sizes of the count table do not add up");
}

Bytes head_of(const CountTable& table, std::size_t room) {
  Bytes head(static_cast<std::size_t>(table.count));
  const ConstBytes here = std::as_bytes(std::span(table.sizes));
  std::ranges::copy(here.first(std::min(head.size(), room)), head.begin());
  return head;
}

void check_head(const CountTable& table, ConstBytes head, std::size_t room) {
  if (xxh3_64(rest_of(head, room)) != table.rest_hash)
    throw Error(ErrorCode::kCorrupt, "the head of the frames is damaged");
}

}  // namespace sparsecast
