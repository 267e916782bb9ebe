#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "sparsecast/delta.hpp"
#include "sparsecast/io.hpp"

namespace sparsecast {

/// A directory for the intermediate files of one conversion, made when the first is asked for; removed with all that is
/// in it when the object goes. Its name is `beside` + ".work." and what makes it unique.
class ScratchDirectory {
 public:
  ScratchDirectory(FileSystem& fs, std::string beside) : fs_(fs), beside_(std::move(beside)) {}
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

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

  explicit Spool(ScratchDirectory& scratch, std::size_t memory_bytes = kMemoryBytes)
      : scratch_(&scratch), memory_bytes_(memory_bytes) {}

  /// Returns where the bytes begin. Not after bytes().
  std::uint64_t append(ConstBytes bytes);
  std::uint64_t size() const noexcept { return in_file_ + memory_.size(); }
  /// All of them; valid while the object lives. Nothing is appended after it.
  ConstBytes bytes();

 private:
  void write_out();

  ScratchDirectory* scratch_;
  std::size_t memory_bytes_;
  Bytes memory_;
  std::string path_;
  std::unique_ptr<File> file_;
  std::uint64_t in_file_ = 0;
  std::unique_ptr<FileMapping> mapping_;
};

}  // namespace sparsecast
