// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sparsecast/export.hpp"
#include "sparsecast/io.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast {

/// Reads contiguous host tensors piece by piece, from memory or from files. The memory or the files must outlive the
/// reader and its copies.
class SPARSECAST_API TensorReader {
 public:
  /// Function that fills `room` with the bytes of tensor number `tensor` from `begin_byte` on. May run concurrently.
  using Read = std::function<void(std::size_t tensor, std::uint64_t begin_byte, MutableBytes room)>;

  /// Makes a reader of tensors that lie in memory; tensor i is tensors[i]. Implicit, so that tensors can be passed
  /// where a reader is expected.
  TensorReader(std::span<const ConstBytes> tensors);    // NOLINT(google-explicit-constructor)
  TensorReader(const std::vector<ConstBytes>& tensors)  // NOLINT(google-explicit-constructor)
      : TensorReader(std::span<const ConstBytes>(tensors)) {}
  /// Makes a reader of the tensors of a table, which calls `read` for their bytes.
  TensorReader(const TensorTable& table, Read read);

  std::size_t size() const noexcept { return bytes_.size(); }  ///< Returns the number of tensors.
  /// Returns the size of a tensor in bytes.
  std::uint64_t bytes(std::size_t tensor) const { return bytes_.at(tensor); }
  /// Reads room.size() bytes of a tensor from `begin_byte` on; the range must lie within the tensor. Throws Error{kIo}
  /// that names file, tensor and offset.
  void read(std::size_t tensor, std::uint64_t begin_byte, MutableBytes room) const { read_(tensor, begin_byte, room); }

 private:
  std::vector<std::uint64_t> bytes_;
  Read read_;
};

/// Location of a tensor's bytes in a safetensors file.
struct SafetensorsEntry {
  TensorSpec spec;
  std::uint64_t begin = 0;  ///< Offset, in the file (not in its data part), of the tensor's first byte.
};

/// The parsed header of one safetensors file.
struct SPARSECAST_API SafetensorsHeader {
  /// Maximum size of the JSON header, which the format defines.
  static constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

  std::vector<SafetensorsEntry> entries;  ///< Tensors of the file, in the order of their offsets.
  /// Content of the object `__metadata__` in the header, without "sparsecast.dtypes", which `entries` have taken in.
  std::map<std::string, std::string> metadata;
  std::uint64_t data_begin = 0;  ///< Offset, in the file, of the data part: 8 + the length of the JSON header.

  /// Parses and validates: length, JSON, no duplicate names, known dtypes, no overflow, offsets that tile the data part
  /// without gap or overlap, and a `file_bytes` that matches them exactly. `bytes` is at least the first 8 +
  /// header-length bytes of the file, or all of it when shorter. Unknown fields are ignored, as by the reference
  /// reader. Throws Error{kUnsupported} for a header that the reference reader accepts but a tensor table cannot hold
  /// (an unknown dtype, a name that is empty, has a zero byte or more than 65535 bytes, more than 32 dimensions), and
  /// Error{kCorrupt} with tensor and offset for any other header that is not valid. A tensor of F4, whose shape counts
  /// numbers, becomes kF4X2, whose shape counts bytes. Metadata "sparsecast.dtypes", a JSON object of names ({"w":
  /// "I4X2"}), gives kI4X2 or kF4X2 to tensors of U8, I8 or I32; names of other tensors are ignored there. An I32 word
  /// holds eight numbers; its four bytes become a new last dimension.
  static SafetensorsHeader parse(std::span<const std::byte> bytes, std::uint64_t file_bytes);
  /// Reads only the header of a file, and returns it parsed. Throws Error{kCorrupt | kUnsupported} for a header that
  /// parse() rejects, and kIo.
  static SafetensorsHeader read(File& file);

  /// Returns the bytes at the start of a file (8-byte length and JSON, padded with spaces to a multiple of 8) for these
  /// tensors in this order. Tensors of kI4X2 and kF4X2 are written as U8, or as I32 if they have several dimensions and
  /// the last is 4, as in the checkpoints of engines. Metadata "sparsecast.dtypes" records their dtypes.
  static std::vector<std::byte> serialize(std::span<const TensorSpec> specs,
                                          const std::map<std::string, std::string>& metadata);
};

/// Returns the spec of a tensor with the same bytes whose dtype is `pairs`, pairs of 4-bit numbers. U8 and I8 keep
/// their shape; I32 gets a new last dimension of 4, the bytes of a word. Returns nullopt for other dtypes, for I32 that
/// already has TensorTable::kMaxRank dimensions, and when `pairs` is not kI4X2 or kF4X2.
SPARSECAST_API std::optional<TensorSpec> as_pairs(const TensorSpec& spec, DType pairs);

/// Function that returns the dtype, kI4X2 or kF4X2, of the pairs of 4-bit numbers that a tensor holds. Returns nullopt
/// for a tensor that is to stay as it is.
using PairsOf = std::function<std::optional<DType>(const TensorSpec&)>;

/// Returns the table, with the tensors that `pairs_of` selects converted by as_pairs(). Throws Error{kUsage} that names
/// a tensor that cannot be converted.
SPARSECAST_API TensorTable with_pairs(const TensorTable& table, const PairsOf& pairs_of);

/// A checkpoint opened for reading: one safetensors file, or a directory with `model.safetensors.index.json` (or with
/// exactly one *.safetensors file). Its files stay open. Tensors are read on demand, and a file that has become shorter
/// is Error{kIo}, with tensor and offset.
class SPARSECAST_API Checkpoint {
 public:
  /// Opens a checkpoint. Throws Error{kIo | kCorrupt | kUnsupported}; the context names the file.
  static Checkpoint open(FileSystem& fs, const std::string& path);

  /// Returns all tensors, ordered by name (bytewise), so that the order does not depend on the split into files.
  const TensorTable& table() const noexcept { return table_; }
  /// Fills `room` with the bytes of tensor i, an index into `table()`, from `begin_byte` on. May run concurrently.
  void read(std::size_t i, std::uint64_t begin_byte, MutableBytes room) const;
  /// Returns all bytes of tensor i.
  std::vector<std::byte> tensor(std::size_t i) const;
  /// Returns a reader of all tensors. The Checkpoint must outlive the reader.
  TensorReader reader() const;
  /// Declares that some tensors hold pairs of 4-bit numbers, which the files do not say: changes their dtypes and
  /// shapes in `table()` by with_pairs(). Does not change the files.
  void declare(const PairsOf& pairs_of) { table_ = with_pairs(table_, pairs_of); }

  struct FilePart {
    std::string path;
    SafetensorsHeader header;
    std::shared_ptr<File> file;
  };
  struct Location {
    std::size_t file = 0;     ///< Index of the file in files().
    std::uint64_t begin = 0;  ///< Offset, in that file, of the tensor's first byte.
  };
  const std::vector<FilePart>& files() const noexcept { return files_; }
  const Location& location(std::size_t i) const { return locations_[i]; }
  /// Returns true when the opened path is a directory; index_json() is then the text of its index file (empty if there
  /// is none).
  bool sharded() const noexcept { return sharded_; }
  const std::string& index_json() const noexcept { return index_json_; }

 private:
  TensorTable table_;
  std::vector<FilePart> files_;
  std::vector<Location> locations_;
  std::string index_json_;
  bool sharded_ = false;
};

/// Writes one safetensors file tensor by tensor, atomically (AtomicFile).
class SPARSECAST_API SafetensorsWriter {
 public:
  SafetensorsWriter(FileSystem& fs, const std::string& path, std::vector<TensorSpec> specs,
                    const std::map<std::string, std::string>& metadata = {});
  /// Appends bytes of the next tensor in order; may be called many times per tensor.
  void append(std::span<const std::byte> bytes);
  /// Completes the file, which then appears under its path. Throws Error{kUsage} unless exactly the bytes of all
  /// announced tensors were appended.
  void finish();

 private:
  AtomicFile file_;
  std::uint64_t expected_ = 0;
};

/// Changes of one tensor in the form that other systems use: `count` flat element indices (int32, little-endian,
/// strictly increasing) and the new bits of these elements. `tensor` is an index into the table. The producer of the
/// patch owns the bytes, which may be unaligned.
struct TensorPatch {
  std::size_t tensor = 0;
  ConstBytes indices;  ///< The element indices: count * 4 bytes.
  ConstBytes values;   ///< The new bits: count * element size bytes.
  std::uint64_t count = 0;
};

/// Patches of some tensors of a table, at most one for each tensor. They are read on demand.
struct TensorPatches {
  struct Head {
    std::size_t tensor = 0;
    std::uint64_t count = 0;
  };
  std::vector<Head> heads;
  /// Function that reads patch number n, which heads[n] describes, into `room`, and returns it. The result points into
  /// `room`. May run concurrently. Throws Error{kIo}.
  std::function<TensorPatch(std::size_t n, std::vector<std::byte>& room)> read;
};

/// A sparse step: a safetensors file whose entries are `NAME.indices` (I32, flat, strictly increasing) and
/// `NAME.values` (the tensor's dtype), as RL trainers publish it. The file stays open.
class SPARSECAST_API SparseStep {
 public:
  /// Returns true when all entries of a file are pairs NAME.indices and NAME.values and there is at least one pair, or
  /// when the metadata has sparse=True.
  static bool recognises(const SafetensorsHeader& header);
  /// Opens a sparse step over `base`. Throws Error{kCorrupt | kTableMismatch} with tensor and offset for an unknown
  /// name, another dtype, counts that differ, or an index out of range or out of order.
  static SparseStep open(FileSystem& fs, const std::string& path, const TensorTable& base);

  /// Returns the patches. TensorPatch::tensor is an index into the table `base`. The SparseStep must outlive the
  /// patches.
  TensorPatches patches() const;
  const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }
  /// Writes the values into `tensors` (parallel to the table `base`), and returns the number of elements written.
  std::uint64_t apply(std::span<const MutableBytes> tensors) const;

 private:
  struct Entry {
    TensorPatches::Head head;
    std::uint64_t indices = 0;  ///< Offset, in the file, of the indices.
    std::uint64_t values = 0;   ///< Offset, in the file, of the values.
  };
  TensorPatch read(const Entry& entry, std::vector<std::byte>& room) const;

  std::shared_ptr<File> file_;
  std::vector<Entry> entries_;
  std::map<std::string, std::string> metadata_;
  TensorTable base_;
};

}  // namespace sparsecast
