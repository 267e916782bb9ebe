// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>

#include "core/file_tree.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/io.hpp"

namespace sparsecast {

// Process ids are reused, in a restarted container even at once, so a file left by a crash must not block a later
// process.
std::string temporary_name(FileSystem& fs, const std::string& path) {
  static std::atomic<std::uint64_t> counter{0};
  std::string name;
  do {
    name = fmt::format("{}.tmp.{}.{}", path, ::getpid(), counter++);
  } while (fs.exists(name));
  return name;
}

std::string parent_directory(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

AtomicFile::AtomicFile(FileSystem& fs, std::string path)
    : fs_(fs), path_(std::move(path)), temporary_(temporary_name(fs, path_)) {
  file_ = fs_.open(temporary_, OpenMode::kCreateExclusive);
}

AtomicFile::~AtomicFile() {
  if (committed_) return;
  file_.reset();
  try {
    fs_.remove(temporary_);
  } catch (...) {
    // A destructor cannot report this: the temporary file stays, under a recognisable name.
  }
}

void AtomicFile::append(std::span<const std::byte> bytes) {
  if (!file_) throw Error(ErrorCode::kUsage, "the file is committed already, or a write to it failed", path_);
  try {
    file_->write_at(size_, bytes);
  } catch (...) {
    file_.reset();
    throw;
  }
  size_ += bytes.size();
}

void AtomicFile::sync_and_close() {
  // Tried only once: a second fsync after a failed one would report success for lost data.
  const std::unique_ptr<File> file = std::move(file_);
  if (!file) throw Error(ErrorCode::kUsage, "the file is committed already, or an attempt to write it failed", path_);
  file->sync();
}

// Makes the data durable, then renames, then makes the name durable.

void AtomicFile::commit() {
  sync_and_close();
  fs_.rename(temporary_, path_);
  committed_ = true;
  fs_.sync_directory(parent_directory(path_));
}

bool AtomicFile::commit_exclusive() {
  sync_and_close();
  if (!fs_.rename_exclusive(temporary_, path_)) {
    // The other writer's name may not be durable yet, but the caller relies on it.
    fs_.sync_directory(parent_directory(path_));
    return false;
  }
  committed_ = true;
  fs_.sync_directory(parent_directory(path_));
  return true;
}

}  // namespace sparsecast
