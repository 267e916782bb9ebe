// SPDX-License-Identifier: Apache-2.0
#pragma once

// The one count table of a broadcast. Before host records it says how many there are and how long each is; before
// frames it says how long they are, and holds their head. Its size is fixed, so that a receiver needs to know nothing
// beforehand; sizes and heads that do not fit follow in a broadcast of their own.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sparsecast/delta.hpp"

namespace sparsecast {

enum class TableKind : std::uint32_t { kHostRecords = 1, kFrames = 2 };

/// A table of 8 KiB is still a small message, whose broadcast takes as long as its latency, and holds the head of about
/// 35 routes. Tables before frames travel only as far as their heads are expected to reach (FrameTransfer::head_room).
inline constexpr std::size_t kTableSizes = 1017;
inline constexpr std::size_t kTableHeadBytes = kTableSizes * sizeof(std::uint64_t);

struct CountTable {
  std::uint32_t magic = 0;
  TableKind kind = TableKind::kHostRecords;
  std::uint32_t protocol = 0;
  std::uint32_t error_code = 0;  ///< Not 0: the source has nothing to send, by this ErrorCode.
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;                         ///< Number of records; of frames, the bytes of their head.
  std::uint64_t total = 0;                         ///< Bytes of all records or frames.
  std::uint64_t rest_hash = 0;                     ///< XXH3 of the part of a head that does not lie here.
  std::uint64_t checksum = 0;                      ///< XXH3 of all before it and of the sizes here.
  std::array<std::uint64_t, kTableSizes> sizes{};  ///< Of frames: their head, as far as it fits.
};
static_assert(sizeof(CountTable) == 8192);

struct TableLimits {
  std::uint64_t max_count = 0;  ///< Of records; of frames, bytes of their head.
  std::uint64_t max_bytes = 0;
};

CountTable make_table(std::uint64_t sequence, std::span<const std::uint64_t> sizes);
/// Returns the table before frames of `frame_bytes` bytes in all.
/// `room`: bytes of the head that lie in it, at most kTableHeadBytes; what is behind them is zero and need not travel.
CountTable make_head_table(std::uint64_t sequence, ConstBytes head, std::uint64_t frame_bytes,
                           std::size_t room = kTableHeadBytes);
/// Returns the table of a source that has no frames to send, with the error that keeps it from that.
CountTable make_error_table(std::uint64_t sequence, std::uint32_t error_code);

/// Throws Error{kCorrupt | kGroupMismatch} for a table that is not the next one of this kind, or over the limits.
void check_table(const CountTable& table, TableKind kind, std::uint64_t sequence, const TableLimits& limits);
/// Returns the sizes; those behind the table's end are still zero.
std::vector<std::uint64_t> sizes_of(const CountTable& table);
/// Throws Error{kCorrupt} unless the completed sizes add up to what the table says.
void check_sizes(const CountTable& table, std::span<const std::uint64_t> sizes);
/// Returns the head with as much of it as lies in the table; the rest is still zero.
Bytes head_of(const CountTable& table, std::size_t room = kTableHeadBytes);
/// Throws Error{kCorrupt} unless the rest of the completed head is the one that the table names.
void check_head(const CountTable& table, ConstBytes head, std::size_t room = kTableHeadBytes);

}  // namespace sparsecast
