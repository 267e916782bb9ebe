// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sparsecast/codec.hpp"
#include "sparsecast/digest.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/io.hpp"
#include "sparsecast/safetensors.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast {

/// BLAKE2b-256 (RFC 7693) hash that names a stored object. Unlike Hash128, it also protects against an adversary.
struct ContentHash {
  std::array<std::byte, 32> bytes{};
  friend auto operator<=>(const ContentHash&, const ContentHash&) = default;
};

/// Returns a hash as 64 lower-case hexadecimal digits, in the order of its bytes.
SPARSECAST_API std::string to_hex(const ContentHash& hash);
/// Parses the output of to_hex. Throws Error{kUsage} unless `text` is exactly 64 lower-case hexadecimal digits.
SPARSECAST_API ContentHash content_hash_from_hex(const std::string& text);

/// Returns the BLAKE2b-256 hash of `bytes`.
SPARSECAST_API ContentHash content_hash(std::span<const std::byte> bytes);

/// Computes a ContentHash of bytes that arrive in pieces.
class SPARSECAST_API ContentHasher {
 public:
  ContentHasher();
  ~ContentHasher();
  ContentHasher(ContentHasher&&) noexcept;
  ContentHasher& operator=(ContentHasher&&) noexcept;
  void append(std::span<const std::byte> bytes);
  /// Returns the hash of all appended bytes, and resets the hasher to its initial state.
  ContentHash finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

using Bytes = std::vector<std::byte>;

/// Identifier of a stream, that is, of all deltas of one training run (16 bytes). Both ends must use the same
/// identifier.
using StreamId = Hash128;

/// First record of a delta. Layout: docs/wire-format.md, "Header record".
struct DeltaHeader {
  StreamId stream;
  std::uint64_t version = 0;
  std::uint64_t base_version = 0;
  Hash128 table_hash;
  StateDigest base_digest;
  std::uint64_t elements = 0;  ///< Number of elements in the whole table.
  std::uint32_t tensors = 0;   ///< Number of tensors in the whole table.
  std::uint32_t frame_capacity = 0;
  PositionMode positions = PositionMode::kAuto;
  ValueCodec values = ValueCodec::kUlp;
  std::uint64_t delta_id = 0;  ///< The header's checksum; every other record of the delta repeats it.
};

/// Last record of a delta. A delta without this record is incomplete and cannot be applied.
struct CommitRecord {
  std::uint64_t delta_id = 0;
  std::uint64_t version = 0;
  std::uint32_t frames = 0;
  std::uint64_t changed = 0;      ///< Total number of changed elements in all frames.
  std::uint64_t frame_bytes = 0;  ///< Total size of the frame records, in bytes.
  StateDigest result_digest;
  std::uint64_t frames_hash = 0;  ///< XXH3-64 of the frames' checksums in order.
};

/// The fixed fields at the beginning of a frame record.
struct FrameHeader {
  std::uint64_t delta_id = 0;
  std::uint32_t sequence = 0;
  std::uint32_t groups = 0;
  std::uint32_t blocks = 0;
  bool compressed = false;
  std::uint32_t stored_bytes = 0;
  std::uint32_t body_bytes = 0;
  std::uint64_t changed = 0;
  std::uint64_t version = 0;
  std::uint64_t checksum = 0;
};

enum class RecordKind { kHeader, kTable, kFrame, kCommit };

/// Kind of a record and its size in bytes (a multiple of 8).
struct RecordPrefix {
  RecordKind kind;
  std::uint32_t bytes;
};
/// Returns the kind and the size of the record at the front of `bytes`. Only the first 8 bytes of the record need to be
/// present. Throws Error{kCorrupt} when the magic or the length is impossible.
SPARSECAST_API RecordPrefix peek_record(ConstBytes bytes);

/// Returns the content of a header record. `record` is exactly one record. Verifies its checksum, every bound and every
/// reserved field. Throws Error{kCorrupt} for an invalid record, and kUnsupported for a newer format version or
/// feature.
SPARSECAST_API DeltaHeader parse_header(ConstBytes record);
/// Returns the content of a commit record. Verifies its checksum, size and reserved fields. Throws Error{kCorrupt} for
/// an invalid record, and kUnsupported for a feature that this build does not know.
SPARSECAST_API CommitRecord parse_commit(ConstBytes record);
/// Returns the tensor table in a table record of the delta with this header. Verifies its checksum, every bound and
/// every reserved field. Throws Error{kCorrupt} for an invalid record, kForeignStream for a record of another delta,
/// and kTableMismatch for a table that does not have the hash in the header.
SPARSECAST_API TensorTable parse_table(ConstBytes record, const DeltaHeader& header);
/// Returns the fixed fields of a frame record. Verifies the checksum of the whole record and the lengths, but not the
/// blocks. Throws Error{kCorrupt} for an invalid record, and kUnsupported for a feature that this build does not know.
SPARSECAST_API FrameHeader parse_frame_header(ConstBytes record);

/// Returns the header as a record, and sets header.delta_id to its checksum.
SPARSECAST_API Bytes pack_header(DeltaHeader& header);
/// Returns the commit as a record.
SPARSECAST_API Bytes pack_commit(const CommitRecord& commit);
/// Returns the table as a record of the delta with this DeltaHeader::delta_id.
SPARSECAST_API Bytes pack_table(const TensorTable& table, std::uint64_t delta_id);

/// A delta in memory: its records, each ready for a transport, which forwards them without parsing them.
struct Delta {
  DeltaHeader info;
  CommitRecord result;
  Bytes header;
  std::vector<Bytes> frames;
  Bytes commit;

  /// Returns the number of bytes that travel when both ends already share the table: header, frames and commit.
  std::uint64_t wire_bytes() const noexcept {
    std::uint64_t total = header.size() + commit.size();
    for (const Bytes& frame : frames) total += frame.size();
    return total;
  }
};

/// Function that receives the records of a delta in their order: header, table (only when writing a file), frames,
/// commit.
using RecordSink = std::function<void(Bytes&& record)>;

/// Statistics of a delta, from the directories of its frames, which list the blocks.
struct DeltaReport {
  struct Tensor {
    std::size_t index = 0;
    std::uint64_t changed = 0;
    std::uint64_t bytes = 0;  ///< Bytes of the tensor's blocks: directory entries and payloads.
    /// Number of blocks sent whole (kDense) because their changes alone would take more bytes.
    std::uint64_t dense_blocks = 0;
    std::uint64_t blocks = 0;
  };
  std::uint64_t changed = 0;
  std::uint64_t blocks_by_codec[6] = {};  ///< Number of blocks of each position codec; the index is a PositionCodec.
  std::vector<Tensor> tensors;            ///< Tensors that occur in the delta, in ascending order of index.
};

/// Returns the statistics of `delta`, a delta of `table` that this process has encoded. Reads only the directories of
/// the frames, and decodes no blocks.
SPARSECAST_API DeltaReport report_of(const Delta& delta, const TensorTable& table);

/// A delta file (`.scd`) opened for reading: the records header, table, frames and commit, and nothing after them.
/// open() and over() check the prefix of every record, the header, the table and the commit record, that the commit
/// matches the frames, and each frame's checksum; the frames' blocks are validated as they are decoded. Errors name the
/// file, the record and its offset.
class SPARSECAST_API DeltaFile {
 public:
  /// Opens the delta file at `path`, which stays open. Throws Error{kIo | kCorrupt | kUnsupported}.
  static DeltaFile open(FileSystem& fs, const std::string& path);
  /// Returns the delta file whose content is `bytes`. The caller keeps `bytes` alive while the DeltaFile exists. `name`
  /// appears in error messages. Throws Error{kCorrupt | kUnsupported}.
  static DeltaFile over(ConstBytes bytes, const std::string& name);

  const std::string& name() const noexcept { return name_; }
  std::uint64_t bytes() const noexcept { return size_; }
  const DeltaHeader& header() const noexcept { return header_; }
  const TensorTable& table() const noexcept { return table_; }
  const CommitRecord& commit() const noexcept { return commit_; }
  std::size_t frames() const noexcept { return frames_.size(); }
  /// Returns frame record i, read from the file. Throws Error{kIo}, which names file, frame and offset, when the file
  /// has become shorter.
  Bytes frame(std::size_t i) const;
  std::uint64_t frame_bytes(std::size_t i) const { return frames_[i].bytes; }
  ConstBytes header_record() const noexcept { return header_record_; }
  ConstBytes table_record() const noexcept { return table_record_; }
  ConstBytes commit_record() const noexcept { return commit_record_; }
  /// Returns the statistics of the delta, after decoding and validating every block of every frame. Throws
  /// Error{kCorrupt} for a block that is not valid. Writes nothing.
  DeltaReport report() const;

 private:
  struct FramePlace {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };

  void scan();
  Bytes read(std::uint64_t offset, std::uint64_t bytes) const;

  std::string name_;
  std::uint64_t size_ = 0;
  std::shared_ptr<File> file_;  ///< The open file; null when the delta is in `memory_`.
  ConstBytes memory_;
  DeltaHeader header_;
  TensorTable table_;
  CommitRecord commit_;
  Bytes header_record_;
  Bytes table_record_;
  Bytes commit_record_;
  std::vector<FramePlace> frames_;
};

/// Merges `first`, a delta u->v, and `second`, a delta v->w, into a delta u->w, section by section. Passes its records
/// to `sink` (header, table, frames, commit), and returns its commit record. With the value codecs `ulp` and `xor`,
/// elements that return to their value in u are dropped. Both deltas must have the same stream, table and (unless one
/// has no frames) value codec, and `second` must start at the version and the digest at which `first` ends. `base` has
/// the tensors at version u, parallel to the table; it is needed when either delta has `context` positions, or the
/// result is to have them. Throws Error{kVersionGap | kWrongBase | kTableMismatch | kForeignStream | kUsage}.
SPARSECAST_API CommitRecord compose(const DeltaFile& first, const DeltaFile& second, const EncodeOptions& options,
                                    const RecordSink& sink, const std::optional<TensorReader>& base = std::nullopt);

/// Encodes a delta u->v again, with the position mode, compression and frame size of `options`, but the same value
/// codec. Passes the new records to `sink`, and returns the commit record. `base` has the tensors at version u,
/// parallel to the table; it is needed when the delta has `context` positions, or the result is to have them. If `base`
/// has the tensors at another version w instead, `since` is the delta u->w, which must be neither `raw` nor `context`.
/// Throws Error{kUsage | kTableMismatch | kWrongBase}.
SPARSECAST_API CommitRecord recode(const DeltaFile& delta, const EncodeOptions& options, const RecordSink& sink,
                                   const std::optional<TensorReader>& base = std::nullopt,
                                   const DeltaFile* since = nullptr);

/// Inverts a delta u->v into a delta v->u. Passes its records to `sink`, and returns its commit record. `base` has the
/// tensors at version u, parallel to the table. `base` is needed when the delta is `raw` or `context`, or the result is
/// to be `context`; without it, the call then throws Error{kUsage}.
SPARSECAST_API CommitRecord invert(const DeltaFile& delta, const EncodeOptions& options, const RecordSink& sink,
                                   const std::optional<TensorReader>& base = std::nullopt);

}  // namespace sparsecast
