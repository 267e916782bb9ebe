#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sparsecast/digest.hpp"
#include "sparsecast/io.hpp"
#include "sparsecast/safetensors.hpp"

namespace sparsecast {

/// Called now and then during long work, perhaps from several threads: what is being done, and how much of it
/// (bytes or elements) is done out of the total. May be empty.
using Progress = std::function<void(const char* phase, std::uint64_t done, std::uint64_t total)>;

/// Where the tensors of a checkpoint lie, without its mappings: what in-place work keeps while it writes.
struct CheckpointLayout {
  TensorTable table;
  std::vector<std::string> files;
  std::vector<Checkpoint::Location> locations;  ///< Parallel to the table.

  static CheckpointLayout of(const Checkpoint& checkpoint);
};

/// The files of a checkpoint opened for reading, or for writing in place, by tensor and byte: only windows of them
/// are ever in memory. Reads and writes of distinct ranges may run concurrently.
class CheckpointStore {
 public:
  /// `mode` is kRead or kReadWrite. Throws Error{kIo}.
  CheckpointStore(FileSystem& fs, CheckpointLayout layout, OpenMode mode);

  const TensorTable& table() const noexcept { return layout_.table; }
  /// Errors name the file, the tensor and the byte.
  void read(std::size_t tensor, std::uint64_t begin_byte, std::span<std::byte> buffer) const;
  void write(std::size_t tensor, std::uint64_t begin_byte, std::span<const std::byte> bytes);
  /// Where byte `begin_byte` of the tensor lies in its file: what page alignment is about.
  std::uint64_t file_offset(std::size_t tensor, std::uint64_t begin_byte) const {
    return layout_.locations[tensor].begin + begin_byte;
  }
  /// Makes all writes durable, or throws; a failed call must not be repeated and believed.
  void sync();

 private:
  CheckpointLayout layout_;
  std::vector<std::unique_ptr<File>> files_;
};

/// Digest of each tensor, read in full from the files in windows (not through a mapping), so that memory stays
/// bounded and a read error is an Error. `threads`: 0 for all cores.
std::vector<StateDigest> digest_store(const CheckpointStore& store, int threads, const Progress& progress = nullptr);

}  // namespace sparsecast
