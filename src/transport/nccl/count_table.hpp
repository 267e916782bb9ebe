// SPDX-License-Identifier: Apache-2.0
#pragma once

// The one count table of a broadcast: how many records or buckets, and how long each is. Its size is fixed, so that a
// receiver needs to know nothing beforehand; sizes that do not fit follow like a record of their own.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace sparsecast {

enum class TableKind : std::uint32_t { kHostRecords = 1, kDeviceBuckets = 2 };

inline constexpr std::size_t kTableSizes = 1017;

struct CountTable {
  std::uint32_t magic = 0;
  TableKind kind = TableKind::kHostRecords;
  std::uint32_t protocol = 0;
  std::uint32_t error_code = 0;  ///< Not 0: the source has nothing to send, by this ErrorCode.
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;
  std::uint64_t total = 0;
  std::uint64_t reserved = 0;
  std::uint64_t checksum = 0;  ///< XXH3 of all before it and of the sizes here.
  std::array<std::uint64_t, kTableSizes> sizes{};
};
static_assert(sizeof(CountTable) == 8192);

struct TableLimits {
  std::uint64_t max_records = 0;
  std::uint64_t max_bytes = 0;
  std::uint64_t max_bucket_bytes = 0;
};

CountTable make_table(TableKind kind, std::uint64_t sequence, std::span<const std::uint64_t> sizes);
/// Returns a table with the error that keeps the source from sending.
CountTable make_error_table(TableKind kind, std::uint64_t sequence, std::uint32_t error_code);

/// Throws Error{kCorrupt | kGroupMismatch} for a table that is not the next one of this kind, or over the limits.
void check_table(const CountTable& table, TableKind kind, std::uint64_t sequence, const TableLimits& limits);
/// Returns the sizes; those behind the table's end are still zero.
std::vector<std::uint64_t> sizes_of(const CountTable& table);
/// Throws Error{kCorrupt} unless the completed sizes add up to what the table says, and none is over its bound.
void check_sizes(const CountTable& table, std::span<const std::uint64_t> sizes, const TableLimits& limits);

}  // namespace sparsecast
