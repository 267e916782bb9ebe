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

/// A directory for the intermediate files of one conversion. It is created when the first file is requested; the
/// destructor removes it with all its files. Its name is `beside` + ".work." + a unique suffix.
class WorkDirectory {
 public:
  WorkDirectory(FileSystem& fs, std::string beside) : fs_(fs), beside_(std::move(beside)) {}
  ~WorkDirectory();
  WorkDirectory(const WorkDirectory&) = delete;
  WorkDirectory& operator=(const WorkDirectory&) = delete;

  FileSystem& fs() const noexcept { return fs_; }
  /// Returns a path in the directory that no earlier call has returned and that does not exist yet.
  std::string path(const std::string& name);

 private:
  FileSystem& fs_;
  std::string beside_;
  std::string path_;  ///< Empty until the directory is needed.
  std::uint64_t names_ = 0;
};

/// Bytes that are written once, in order, and then read. A small amount is kept in memory, more in a scratch file.
class Spool {
 public:
  static constexpr std::size_t kMemoryBytes = std::size_t{64} << 20;

  explicit Spool(WorkDirectory& scratch, std::size_t memory_bytes = kMemoryBytes)
      : scratch_(&scratch), memory_bytes_(memory_bytes) {}

  /// Appends the bytes and returns the offset at which they begin.
  std::uint64_t append(ConstBytes bytes);
  std::uint64_t size() const noexcept { return in_file_ + memory_.size(); }
  /// Reads bytes that were appended. May run concurrently, but not with append().
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

/// Throws Error{kCorrupt | kUnsupported} unless the indices of the patch are strictly increasing and inside the tensor.
/// The caller must have checked that `count` and the sizes of the spans agree.
void check_patch(const TensorTable& table, const TensorPatch& patch);

/// Patches of one version, at most one for each tensor, collected until all have arrived. add() checks each patch
/// against the table.
class PatchStore {
 public:
  /// Requires `table` and `scratch` to outlive the store.
  PatchStore(const TensorTable& table, WorkDirectory& scratch) : table_(table), spool_(scratch) {}

  /// Copies the patch; ignores a patch without elements. Throws Error{kCorrupt} if its indices do not increase or
  /// exceed the tensor, or if the tensor already has a patch.
  void add(const TensorPatch& patch);
  PatchSink sink() {
    return [this](const TensorPatch& patch) { add(patch); };
  }
  /// Returns the patches in the order of the table. The store must outlive them, and no patch may be added while they
  /// are in use.
  TensorPatches patches() const;
  std::uint64_t changed() const noexcept { return changed_; }

 private:
  struct Stored {
    TensorPatches::Head head;
    std::uint64_t indices = 0;  ///< Offset of the indices in the spool.
    std::uint64_t values = 0;
  };

  const TensorTable& table_;
  Spool spool_;
  std::vector<Stored> stored_;
  std::vector<bool> seen_;
  std::uint64_t changed_ = 0;
};

}  // namespace sparsecast
