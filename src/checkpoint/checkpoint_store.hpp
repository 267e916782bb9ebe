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

/// Progress callback, called at intervals during long work, possibly from several threads. Gets the name of the phase,
/// and the bytes or elements done so far and in total. May be empty.
using Progress = std::function<void(const char* phase, std::uint64_t done, std::uint64_t total)>;

/// Place of each tensor of a checkpoint, without its open files; in-place work keeps this while it writes.
struct CheckpointLayout {
  TensorTable table;
  std::vector<std::string> files;
  std::vector<Checkpoint::Location> locations;  ///< Parallel to the table.

  static CheckpointLayout of(const Checkpoint& checkpoint);
};

/// Opened files of a checkpoint, read or written in place by tensor and byte; only windows of them are ever in memory.
/// Reads and writes of distinct ranges may run concurrently.
class CheckpointStore {
 public:
  /// Opens the files; `mode` is kRead or kReadWrite. Throws Error{kIo}.
  CheckpointStore(FileSystem& fs, CheckpointLayout layout, OpenMode mode);
  /// Uses the files that the checkpoint has open, for reading.
  explicit CheckpointStore(const Checkpoint& checkpoint);

  const TensorTable& table() const noexcept { return layout_.table; }
  /// Reads bytes of a tensor. An error names the file, the tensor and the byte.
  void read(std::size_t tensor, std::uint64_t begin_byte, std::span<std::byte> buffer) const;
  void write(std::size_t tensor, std::uint64_t begin_byte, std::span<const std::byte> bytes);
  /// Returns the offset in its file of byte `begin_byte` of the tensor, for page alignment.
  std::uint64_t file_offset(std::size_t tensor, std::uint64_t begin_byte) const {
    return layout_.locations[tensor].begin + begin_byte;
  }
  /// Makes all writes durable, or throws. After a failure, a later success does not prove that the writes are durable.
  void sync();

 private:
  CheckpointLayout layout_;
  std::vector<std::shared_ptr<File>> files_;
};

/// Returns the digest of each tensor. Reads all of it from the files in windows, so that memory is bounded and read
/// errors are thrown as Error. `threads` is 0 for all cores.
std::vector<StateDigest> digest_store(const CheckpointStore& store, int threads, const Progress& progress = nullptr);

}  // namespace sparsecast
