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

/// Number of record sizes that a CountTable has room for. With them a table has 8 KiB, which is still a small message:
/// its broadcast costs only its latency. In place of the sizes, a table has room for the head of about 35 routes. A
/// table before frames is sent only up to the expected end of its head (FrameTransfer::head_room).
inline constexpr std::size_t kTableSizes = 1017;
inline constexpr std::size_t kTableHeadBytes = kTableSizes * sizeof(std::uint64_t);

/// Message of a source before the bytes of a transfer: how many records or frame bytes follow.
struct CountTable {
  std::uint32_t magic = 0;
  TableKind kind = TableKind::kHostRecords;
  std::uint32_t protocol = 0;
  std::uint32_t error_code = 0;  ///< ErrorCode of the failure that keeps the source from sending; 0: none.
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;      ///< Number of records; in a table before frames, the size of the head in bytes.
  std::uint64_t total = 0;      ///< Total bytes of all records, or of all frames.
  std::uint64_t rest_hash = 0;  ///< XXH3-64 of the part of the head that is not in the table.
  std::uint64_t checksum = 0;   ///< XXH3-64 of the fields before this one and of `sizes`.
  /// Sizes of the records in bytes; in a table before frames, the bytes of the head. Both only as far as they fit.
  std::array<std::uint64_t, kTableSizes> sizes{};
};
static_assert(sizeof(CountTable) == 8192);

struct TableLimits {
  /// Maximum of CountTable::count: of the number of records, or of the size of a head in bytes.
  std::uint64_t max_count = 0;
  std::uint64_t max_bytes = 0;
};

CountTable make_table(std::uint64_t sequence, std::span<const std::uint64_t> sizes);
/// Returns the table before frames of `frame_bytes` bytes in all, with their `head`. The table takes the first bytes of
/// the head, at most `room`, which is at most kTableHeadBytes. The bytes of the table after them are zero and need not
/// be sent.
CountTable make_head_table(std::uint64_t sequence, ConstBytes head, std::uint64_t frame_bytes,
                           std::size_t room = kTableHeadBytes);
/// Returns the table of a source that sends no frames; `error_code` is the ErrorCode of the reason.
CountTable make_error_table(std::uint64_t sequence, std::uint32_t error_code);

/// Throws Error{kCorrupt} for a damaged table or one above the limits, kUnsupported for another protocol version, and
/// kGroupMismatch for a table of another kind or with another sequence number.
void check_table(const CountTable& table, TableKind kind, std::uint64_t sequence, const TableLimits& limits);
/// Returns the size in bytes of each record. Sizes that do not fit in the table are zero, and the caller fills them in.
std::vector<std::uint64_t> sizes_of(const CountTable& table);
/// Throws Error{kCorrupt} unless `sizes`, the sizes of all records, add up to the total in the table.
void check_sizes(const CountTable& table, std::span<const std::uint64_t> sizes);
/// Returns the head of the frames. The table provides its first bytes, at most `room`; the other bytes are zero, and
/// the caller fills them in.
Bytes head_of(const CountTable& table, std::size_t room = kTableHeadBytes);
/// Throws Error{kCorrupt} unless the bytes of `head` after the first `room` bytes have the hash in the table
/// (CountTable::rest_hash).
void check_head(const CountTable& table, ConstBytes head, std::size_t room = kTableHeadBytes);

}  // namespace sparsecast
