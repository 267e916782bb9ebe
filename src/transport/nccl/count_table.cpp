// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/count_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "sparsecast/error.hpp"
#include "sparsecast/hash.hpp"

namespace sparsecast {
namespace {

constexpr std::uint32_t kTableMagic = 0x31544353;  // "SCT1"
constexpr std::uint32_t kTableProtocol = 1;

std::uint64_t checksum_of(const CountTable& table) {
  const auto bytes = std::as_bytes(std::span(&table, 1));
  return xxh3_64(std::as_bytes(std::span(table.sizes)), xxh3_64(bytes.first(offsetof(CountTable, checksum))));
}

CountTable empty_table(TableKind kind, std::uint64_t sequence) {
  CountTable table;
  table.magic = kTableMagic;
  table.kind = kind;
  table.protocol = kTableProtocol;
  table.sequence = sequence;
  return table;
}

}  // namespace

CountTable make_table(TableKind kind, std::uint64_t sequence, std::span<const std::uint64_t> sizes) {
  CountTable table = empty_table(kind, sequence);
  table.count = sizes.size();
  table.total = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  std::copy_n(sizes.begin(), std::min(sizes.size(), kTableSizes), table.sizes.begin());
  table.checksum = checksum_of(table);
  return table;
}

CountTable make_error_table(TableKind kind, std::uint64_t sequence, std::uint32_t error_code) {
  CountTable table = empty_table(kind, sequence);
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
                            table.kind == TableKind::kHostRecords ? "host records" : "device buckets", table.sequence,
                            kind == TableKind::kHostRecords ? "host records" : "device buckets", sequence));
  }
  if (table.count > limits.max_records || table.total > limits.max_bytes) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("the source announces {} records of {} bytes together; at most {} of {} "
                            "are taken",
                            table.count, table.total, limits.max_records, limits.max_bytes));
  }
}

std::vector<std::uint64_t> sizes_of(const CountTable& table) {
  std::vector<std::uint64_t> sizes(static_cast<std::size_t>(table.count));
  std::copy_n(table.sizes.begin(), std::min(sizes.size(), kTableSizes), sizes.begin());
  return sizes;
}

void check_sizes(const CountTable& table, std::span<const std::uint64_t> sizes, const TableLimits& limits) {
  std::uint64_t total = 0;
  for (const std::uint64_t size : sizes) {
    // In this order a sum cannot wrap.
    if (size > table.total - total) throw Error(ErrorCode::kCorrupt, "the sizes of the count table do not add up");
    if (size > limits.max_bucket_bytes) {
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("a bucket of {} bytes; the staging buffers hold {}", size, limits.max_bucket_bytes));
    }
    total += size;
  }
  if (total != table.total) throw Error(ErrorCode::kCorrupt, "the sizes of the count table do not add up");
}

}  // namespace sparsecast
