// SPDX-License-Identifier: Apache-2.0
#pragma once

// The count table of a broadcast. Before host records, it holds their number and sizes. Before frames, it holds their
// total size and their head. Its size is fixed, so that a receiver needs to know nothing before. Sizes and heads that
// do not fit follow in a separate broadcast.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sparsecast/delta.hpp"

namespace sparsecast {

enum class TableKind : std::uint32_t { kHostRecords = 1, kFrames = 2 };

/// A table of 8 KiB is still a small message, whose broadcast costs only its latency, and holds the head of about 35
/// routes. Of a table before frames, only the part that its head is expected to fill is sent
/// (FrameTransfer::head_room).
inline constexpr std::size_t kTableSizes = 1017;
inline constexpr std::size_t kTableHeadBytes = kTableSizes * sizeof(std::uint64_t);

struct CountTable {
  std::uint32_t magic = 0;
  TableKind kind = TableKind::kHostRecords;
  std::uint32_t protocol = 0;
  std::uint32_t error_code = 0;  ///< If not 0, the source has nothing to send, because of this ErrorCode.
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;                         ///< Number of records; for frames, bytes of their head.
  std::uint64_t total = 0;                         ///< Bytes of all records or frames.
  std::uint64_t rest_hash = 0;                     ///< XXH3 of the part of the head that is not in the table.
  std::uint64_t checksum = 0;                      ///< XXH3 of the fields before it and of `sizes`.
  std::array<std::uint64_t, kTableSizes> sizes{};  ///< For frames: their head, as far as it fits.
};
static_assert(sizeof(CountTable) == 8192);

struct TableLimits {
  std::uint64_t max_count = 0;  ///< For records their number; for frames, bytes of their head.
  std::uint64_t max_bytes = 0;
};

CountTable make_table(std::uint64_t sequence, std::span<const std::uint64_t> sizes);
/// Returns the table before frames of `frame_bytes` bytes in all.
/// `room` is the number of bytes for the head in the table, at most kTableHeadBytes. The bytes behind them are zero and
/// need not be sent.
CountTable make_head_table(std::uint64_t sequence, ConstBytes head, std::uint64_t frame_bytes,
                           std::size_t room = kTableHeadBytes);
/// Returns the table of a source that has no frames to send because of the error.
CountTable make_error_table(std::uint64_t sequence, std::uint32_t error_code);

/// Throws Error{kCorrupt | kGroupMismatch} unless the table is of this kind, has this sequence number, and is within
/// the limits.
void check_table(const CountTable& table, TableKind kind, std::uint64_t sequence, const TableLimits& limits);
/// Returns the sizes of all records. Sizes that do not fit in the table are still zero.
std::vector<std::uint64_t> sizes_of(const CountTable& table);
/// Throws Error{kCorrupt} unless the completed sizes add up to the total in the table.
void check_sizes(const CountTable& table, std::span<const std::uint64_t> sizes);
/// Returns the head with the part that is in the table; the rest is still zero.
Bytes head_of(const CountTable& table, std::size_t room = kTableHeadBytes);
/// Throws Error{kCorrupt} unless the rest of the completed head has the hash in the table.
void check_head(const CountTable& table, ConstBytes head, std::size_t room = kTableHeadBytes);

}  // namespace sparsecast
