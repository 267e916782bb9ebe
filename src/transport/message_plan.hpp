// SPDX-License-Identifier: Apache-2.0
#pragma once

// How a list of records becomes messages: a table of sizes, then few large messages. Both ends compute the same cut
// from the same table, so that nothing but the table is ever interpreted. No MPI here.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sparsecast/delta.hpp"

namespace sparsecast {

/// Limits of one broadcast. A receiver refuses more before it allocates anything for it.
struct WireLimits {
  std::uint64_t piece_bytes = std::uint64_t{1} << 30;  ///< Most bytes of one message, at most 2^30: MPI counts are int.
  std::uint64_t max_records = std::uint64_t{1} << 22;
  std::uint64_t max_bytes = std::uint64_t{1} << 40;  ///< Most bytes of all records together.
};

/// The first message of a broadcast has a fixed size, so that a receiver needs to know nothing: mark, number of
/// records, sum of their sizes, and as many of the sizes as fit. The others follow in messages of their own. 512 bytes
/// are few enough for MPI to send them without asking the receivers first.
inline constexpr std::size_t kOpeningFields = 3;
inline constexpr std::size_t kOpeningSizes = 61;
using Opening = std::array<std::uint64_t, kOpeningFields + kOpeningSizes>;

Opening pack_opening(std::span<const std::uint64_t> sizes);

/// Returns the sizes that the opening announces; those behind its end are still zero. Throws Error{kCorrupt} for
/// anything over the limits.
std::vector<std::uint64_t> parse_opening(const Opening& opening, const WireLimits& limits);

/// Throws Error{kCorrupt} unless the completed sizes add up to what the opening says.
void check_sizes(const Opening& opening, std::span<const std::uint64_t> sizes);

/// Bytes [offset, offset + bytes) of a record.
struct RecordPiece {
  std::size_t record = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const RecordPiece&, const RecordPiece&) = default;
};

/// One message: a single piece, which travels from and to its record directly, or many small records joined.
struct Message {
  std::vector<RecordPiece> pieces;
  std::uint64_t bytes = 0;
};

/// Cuts records of the given sizes into messages, in order. Runs of small records are joined; a large one goes alone,
/// in pieces when it is longer than `piece_bytes`. Empty records need no message.
class MessageCutter {
 public:
  MessageCutter(std::span<const std::uint64_t> sizes, std::uint64_t piece_bytes);

  /// Returns the next messages that may be in flight together; empty at the end.
  std::vector<Message> next_batch();

 private:
  Message next_message();

  std::span<const std::uint64_t> sizes_;
  std::uint64_t piece_bytes_;
  std::size_t record_ = 0;
  std::uint64_t offset_ = 0;
};

}  // namespace sparsecast
