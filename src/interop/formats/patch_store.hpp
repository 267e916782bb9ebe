// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sparsecast/delta.hpp"
#include "sparsecast/io.hpp"
#include "sparsecast/safetensors.hpp"
#include "sparsecast/tensor_patch.hpp"

namespace sparsecast {

/// A directory for the intermediate files of one conversion. Its path is `beside` + ".work." + a unique suffix. It is
/// created when the first file is requested; the destructor removes it with all its files.
class WorkDirectory {
 public:
  WorkDirectory(FileSystem& fs, std::string beside) : fs_(fs), beside_(std::move(beside)) {}
  ~WorkDirectory();
  WorkDirectory(const WorkDirectory&) = delete;
  WorkDirectory& operator=(const WorkDirectory&) = delete;

  FileSystem& fs() const noexcept { return fs_; }
  /// Returns a path in the directory for a new file. No earlier call has returned this path, and no file exists there.
  /// Its name is derived from `name`.
  std::string path(const std::string& name);

 private:
  FileSystem& fs_;
  std::string beside_;
  std::string path_;  ///< Path of the directory; empty until it is created.
  std::uint64_t names_ = 0;
};

/// A sequence of bytes that is first written, in order, and then read at any offset. A small sequence stays in memory;
/// a larger one is moved to a scratch file.
class Spool {
 public:
  static constexpr std::size_t kMemoryBytes = std::size_t{64} << 20;

  explicit Spool(WorkDirectory& scratch, std::size_t memory_bytes = kMemoryBytes)
      : scratch_(&scratch), memory_bytes_(memory_bytes) {}

  /// Appends `bytes`. Returns the offset at which they begin in the spool.
  std::uint64_t append(ConstBytes bytes);
  std::uint64_t size() const noexcept { return in_file_ + memory_.size(); }
  /// Fills `room` with bytes from offset `begin` on, which must have been appended. Several calls of read() may run at
  /// the same time, but none at the same time as append().
  void read(std::uint64_t begin, MutableBytes room) const;

 private:
  void write_out();

  WorkDirectory* scratch_;
  std::size_t memory_bytes_;
  Bytes memory_;
  std::string path_;
  std::unique_ptr<File> file_;
  std::uint64_t in_file_ = 0;
};

/// Throws Error{kCorrupt} unless the indices of the patch are strictly increasing, inside the tensor and below 2^31.
/// The caller must have checked that patch.count matches the sizes of the spans.
void check_patch(const TensorTable& table, const TensorPatch& patch);

/// Collects the patches of one version, at most one for each tensor.
class PatchStore {
 public:
  /// Makes a store for patches of tensors of `table`. It keeps large patches in files of `scratch`. `table` and
  /// `scratch` must outlive the store.
  PatchStore(const TensorTable& table, WorkDirectory& scratch) : table_(table), spool_(scratch) {}

  /// Copies the patch into the store; a patch without elements is not stored. Throws Error{kCorrupt} if the indices do
  /// not increase or exceed the tensor, or if add() was called for this tensor before.
  void add(const TensorPatch& patch);
  /// Returns a function that calls add(). The store must outlive the function.
  PatchSink sink() {
    return [this](const TensorPatch& patch) { add(patch); };
  }
  /// Returns the patches in the order of the table. The store must outlive them, and add() must not be called while
  /// they are in use.
  TensorPatches patches() const;
  /// Returns the total number of elements in all patches.
  std::uint64_t changed() const noexcept { return changed_; }

 private:
  struct Stored {
    TensorPatches::Head head;
    std::uint64_t indices = 0;  ///< Offset of the first index in the spool.
    std::uint64_t values = 0;   ///< Offset of the first value in the spool.
  };

  const TensorTable& table_;
  Spool spool_;
  std::vector<Stored> stored_;
  std::vector<bool> seen_;
  std::uint64_t changed_ = 0;
};

}  // namespace sparsecast
