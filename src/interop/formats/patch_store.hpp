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

/// A directory for the intermediate files of one conversion, made when the first is asked for; removed with all that is
/// in it when the object goes. Its name is `beside` + ".work." and what makes it unique.
class WorkDirectory {
 public:
  WorkDirectory(FileSystem& fs, std::string beside) : fs_(fs), beside_(std::move(beside)) {}
  ~WorkDirectory();
  WorkDirectory(const WorkDirectory&) = delete;
  WorkDirectory& operator=(const WorkDirectory&) = delete;

  FileSystem& fs() const noexcept { return fs_; }
  /// A path in the directory that no earlier call returned; nothing is there.
  std::string path(const std::string& name);

 private:
  FileSystem& fs_;
  std::string beside_;
  std::string path_;  ///< Empty until it is needed.
  std::uint64_t names_ = 0;
};

/// Bytes that are written once, in order, and then read: in memory while they are few, else in a scratch file.
class Spool {
 public:
  static constexpr std::size_t kMemoryBytes = std::size_t{64} << 20;

  explicit Spool(WorkDirectory& scratch, std::size_t memory_bytes = kMemoryBytes)
      : scratch_(&scratch), memory_bytes_(memory_bytes) {}

  /// Returns where the bytes begin.
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

/// Throws Error{kCorrupt | kUnsupported} unless the indices of the patch are strictly increasing and in the tensor.
/// `count` and the spans' sizes agree already.
void check_patch(const TensorTable& table, const TensorPatch& patch);

/// Patches of one version, at most one per tensor, kept until all are there. Each patch is checked against the table
/// when it is added.
class PatchStore {
 public:
  /// Requires `table` and `scratch` to outlive the store.
  PatchStore(const TensorTable& table, WorkDirectory& scratch) : table_(table), spool_(scratch) {}

  /// Copies the patch; one without elements is dropped. Throws Error{kCorrupt} when it is not increasing, reaches
  /// beyond the tensor, or is the tensor's second.
  void add(const TensorPatch& patch);
  PatchSink sink() {
    return [this](const TensorPatch& patch) { add(patch); };
  }
  /// Returns the patches in the order of the table; the store outlives them, and nothing is added meanwhile.
  TensorPatches patches() const;
  std::uint64_t changed() const noexcept { return changed_; }

 private:
  struct Stored {
    TensorPatches::Head head;
    std::uint64_t indices = 0;  ///< Where they begin in the spool.
    std::uint64_t values = 0;
  };

  const TensorTable& table_;
  Spool spool_;
  std::vector<Stored> stored_;
  std::vector<bool> seen_;
  std::uint64_t changed_ = 0;
};

}  // namespace sparsecast
