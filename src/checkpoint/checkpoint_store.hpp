// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sparsecast/digest.hpp"
#include "sparsecast/io.hpp"
#include "sparsecast/safetensors.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast {

/// Function that is called at intervals during long work, possibly from several threads, with the name of the phase of
/// the work, and with the bytes or elements that are done so far and in total. May be empty.
using Progress = std::function<void(const char* phase, std::uint64_t done, std::uint64_t total)>;

/// Place of each tensor of a checkpoint in its files. Code that writes in place keeps this object while it writes,
/// instead of the open Checkpoint.
struct CheckpointLayout {
  TensorTable table;
  std::vector<std::string> files;
  std::vector<Checkpoint::Location> locations;  ///< File of each tensor of `table`, and the tensor's place in it.

  static CheckpointLayout of(const Checkpoint& checkpoint);
};

/// The open files of a checkpoint, which are read or written in place by tensor and byte. Nothing is kept in memory:
/// callers read and write windows. Reads and writes of distinct ranges may run concurrently.
class CheckpointStore {
 public:
  /// Opens the files of `layout` for reading (kRead) or for reading and writing (kReadWrite). Throws Error{kIo}.
  CheckpointStore(FileSystem& fs, CheckpointLayout layout, OpenMode mode);
  /// Uses the files that the checkpoint has open; they can be read but not written.
  explicit CheckpointStore(const Checkpoint& checkpoint);

  const TensorTable& table() const noexcept { return layout_.table; }
  /// Fills `buffer` with the bytes of tensor number `tensor` from `begin_byte` on. An error names the file, the tensor
  /// and the byte.
  void read(std::size_t tensor, std::uint64_t begin_byte, std::span<std::byte> buffer) const;
  /// Writes `bytes` to the bytes of tensor number `tensor` from `begin_byte` on. An error names the file, the tensor
  /// and the byte.
  void write(std::size_t tensor, std::uint64_t begin_byte, std::span<const std::byte> bytes);
  /// Returns the offset in its file of byte `begin_byte` of the tensor. It tells where the pages of the file begin in
  /// the tensor.
  std::uint64_t file_offset(std::size_t tensor, std::uint64_t begin_byte) const {
    return layout_.locations[tensor].begin + begin_byte;
  }
  /// Makes all writes durable. Throws if that fails; after a failure, a later success does not prove that the writes
  /// are durable.
  void sync();

 private:
  CheckpointLayout layout_;
  std::vector<std::shared_ptr<File>> files_;
};

/// Reads all tensors and returns the digest of each. Reads them in windows, so that memory is bounded and read errors
/// are thrown as Error. `threads` is the number of threads, 0 for all cores. `progress` gets the bytes read so far.
std::vector<StateDigest> digest_store(const CheckpointStore& store, int threads, const Progress& progress = nullptr);

/// Reads all tensors of an anchor, the checkpoint at `path`. Throws Error{kMixed} that names `path` unless their digest
/// is `expected`. `threads` and `progress` are as for digest_store().
void require_anchor_digest(const CheckpointStore& store, const StateDigest& expected, const std::string& path,
                           int threads = 1, const Progress& progress = nullptr);

}  // namespace sparsecast
