// SPDX-License-Identifier: Apache-2.0
#pragma once

// How a list of records is sent as messages: a table of sizes, then few large messages. Both ends compute the same
// messages from the table, which is the only data that they interpret. Independent of MPI.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sparsecast/delta.hpp"

namespace sparsecast {

/// Limits of one broadcast. A receiver refuses a broadcast above them before it allocates memory.
struct WireLimits {
  /// Maximum bytes of one message, at most 2^30, because MPI counts are int.
  std::uint64_t piece_bytes = std::uint64_t{1} << 30;
  std::uint64_t max_records = std::uint64_t{1} << 22;
  std::uint64_t max_bytes = std::uint64_t{1} << 40;  ///< Maximum bytes of all records together.
};

/// Number of words in an Opening before the record sizes: a mark, the number of records, and the sum of their sizes.
inline constexpr std::size_t kOpeningFields = 3;
/// Number of record sizes that an Opening has room for; other sizes follow in separate messages.
inline constexpr std::size_t kOpeningSizes = 61;
/// First message of a broadcast: kOpeningFields words, then the sizes of the first kOpeningSizes records in bytes. It
/// has a fixed size, so that a receiver needs to know nothing before. Its 512 bytes are few enough for MPI to send them
/// without first asking the receivers (eagerly).
using Opening = std::array<std::uint64_t, kOpeningFields + kOpeningSizes>;

Opening pack_opening(std::span<const std::uint64_t> sizes);

/// Returns the size in bytes of each record of a broadcast. Sizes that do not fit in the opening are zero, and the
/// caller fills them in. Throws Error{kCorrupt} for an opening without its mark, and for more records or bytes than the
/// limits allow.
std::vector<std::uint64_t> parse_opening(const Opening& opening, const WireLimits& limits);

/// Throws Error{kCorrupt} unless `sizes`, the sizes of all records, add up to the sum in the opening.
void check_sizes(const Opening& opening, std::span<const std::uint64_t> sizes);

/// Bytes [offset, offset + bytes) of a record.
struct RecordPiece {
  std::size_t record = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const RecordPiece&, const RecordPiece&) = default;
};

/// One message of a broadcast: either a single piece of a record, which is sent and received in the memory of the
/// record, or several small records, which are joined in one buffer.
struct Message {
  std::vector<RecordPiece> pieces;
  std::uint64_t bytes = 0;
};

/// Cuts records of the given sizes into messages, in order. Runs of small records are joined. A large record goes
/// alone, in pieces when it is longer than `piece_bytes`. Empty records need no message.
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
