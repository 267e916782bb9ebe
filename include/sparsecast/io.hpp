// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sparsecast/export.hpp"

namespace sparsecast {

/// An open file. Every call throws Error{kIo} that names the path, the operation and errno.
class SPARSECAST_API File {
 public:
  virtual ~File() = default;  ///< Closes the file. An error on close is not reported, so call sync() first.
  virtual std::uint64_t size() = 0;
  /// Fills `buffer` with the bytes from `offset` on; a file that ends earlier is Error{kIo}.
  virtual void read_at(std::uint64_t offset, std::span<std::byte> buffer) = 0;
  /// Writes all of `buffer` from `offset` on; repeats short writes and interrupted calls (EINTR).
  virtual void write_at(std::uint64_t offset, std::span<const std::byte> buffer) = 0;
  /// Sets the size of the file; new bytes are zero.
  virtual void truncate(std::uint64_t size) = 0;
  /// Makes the content durable by fsync. After a failure the file's content is unknown, and a later success proves
  /// nothing.
  virtual void sync() = 0;
};

enum class OpenMode {
  kRead,             ///< The file must exist, and is only read.
  kReadWrite,        ///< The file must exist, and may be read and written.
  kCreate,           ///< The file is created, or an existing one is truncated.
  kCreateExclusive,  ///< The file must not exist, and is created.
  kCreatePrivate,    ///< The file must not exist, and is created so that only its owner may read and write it.
};

/// Interface through which the library makes all file system calls, so that tests can inject every failure and
/// enumerate every crash state. Files are read, never mapped: a mapped file that another process cuts short kills its
/// reader. Thread-safe. posix() refuses "scheme:/...", "~/..." and "$HOME/..." with Error{kUsage}.
class SPARSECAST_API FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual std::unique_ptr<File> open(const std::string& path, OpenMode mode) = 0;
  virtual bool exists(const std::string& path) = 0;
  virtual bool is_directory(const std::string& path) = 0;
  /// Returns true when `path` itself is a symbolic link, whatever its target. Returns false in a file system without
  /// links.
  virtual bool is_link(const std::string& path);
  /// Returns the number of names (hard links) of a file; 1 in a file system without hard links.
  virtual std::uint64_t names(const std::string& path);
  /// Returns the path that symbolic links lead to; `path` itself when nothing exists there, or in a file system without
  /// links.
  virtual std::string resolved(const std::string& path);
  /// Makes a hard link `to`, which must not exist, to the file `from`, or to the symbolic link itself if `from` is a
  /// symbolic link. Returns true; returns false, and does nothing, in a file system without hard links.
  virtual bool link(const std::string& from, const std::string& to);
  /// Makes a directory, whose parent must exist; an existing directory is no error.
  virtual void make_directory(const std::string& path) = 0;
  /// Returns true when only the owner of the file may read, write or execute it.
  virtual bool is_private(const std::string& path) = 0;
  /// Returns the names of the directory's entries, sorted, without "." and "..".
  virtual std::vector<std::string> list(const std::string& path) = 0;
  virtual void rename(const std::string& from, const std::string& to) = 0;
  /// Renames without replacing another file, and returns true. When `to` exists, returns false and leaves `from` in
  /// place. Among any number of racing callers, only one succeeds. A crash may leave both names. Uses link() and
  /// remove, or renameat2 where there are no hard links.
  virtual bool rename_exclusive(const std::string& from, const std::string& to) = 0;
  virtual void remove(const std::string& path) = 0;  ///< Removes a file or an empty directory.
  /// Makes the creations, renames and removals of the directory's entries durable.
  virtual void sync_directory(const std::string& path) = 0;
  /// Returns the time of the last write to a file, by the file system's clock.
  virtual std::chrono::system_clock::time_point modified(const std::string& path) = 0;
  /// Returns the time of a monotonic clock, which deadlines use.
  virtual std::chrono::steady_clock::time_point now() = 0;
  /// Returns the time of the wall clock, which may jump; for time stamps.
  virtual std::chrono::system_clock::time_point wall_now() = 0;

  /// Returns the file system of the operating system, used through POSIX calls.
  static FileSystem& posix();
};

/// Returns the content of a whole file. Throws Error{kIo}.
SPARSECAST_API std::vector<std::byte> read_file(FileSystem& fs, const std::string& path);

/// Returns the directory part of a path: "dir" for "dir/name", "." when there is none.
SPARSECAST_API std::string parent_directory(const std::string& path);

/// Writes a file so that either the old or the whole new content is visible under `path`, durable on return. Writes a
/// temporary file next to it, then calls fsync, rename, and fsync of the directory. The destructor removes an
/// uncommitted temporary file.
class SPARSECAST_API AtomicFile {
 public:
  AtomicFile(FileSystem& fs, std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void append(std::span<const std::byte> bytes);
  std::uint64_t size() const noexcept { return size_; }
  File& file() noexcept { return *file_; }
  /// Makes the appended bytes the content of the file at `path`, replacing an existing file; durable on return.
  void commit();
  /// Commits without replacing another file. Returns true when the file was made, and false when `path` exists; then
  /// the destructor removes the temporary file.
  bool commit_exclusive();

 private:
  void sync_and_close();

  FileSystem& fs_;
  std::string path_;
  std::string temporary_;
  std::unique_ptr<File> file_;
  std::uint64_t size_ = 0;
  bool committed_ = false;
};

}  // namespace sparsecast
