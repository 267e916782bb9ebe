#include <fmt/format.h>
#include <unistd.h>

#include <atomic>

#include "sparsecast/error.hpp"
#include "sparsecast/io.hpp"

namespace sparsecast {
namespace {

/// A name beside `path` that no other process and no other AtomicFile of this one uses. Process ids come again, in a
/// restarted container even at once: what a crash left under such a name must not stop its successor.
std::string temporary_name(FileSystem& fs, const std::string& path) {
  static std::atomic<std::uint64_t> counter{0};
  std::string name;
  do {
    name = fmt::format("{}.tmp.{}.{}", path, ::getpid(), counter++);
  } while (fs.exists(name));
  return name;
}

}  // namespace

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
    // Nothing more can be done here: a temporary file is left behind, under a name that says so.
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
  // One attempt, whatever becomes of it: a second fsync after a failed one would report success for lost data.
  const std::unique_ptr<File> file = std::move(file_);
  if (!file) throw Error(ErrorCode::kUsage, "the file is committed already, or an attempt to write it failed", path_);
  file->sync();
}

// Data first and durable, then the name, then the name durable.

void AtomicFile::commit() {
  sync_and_close();
  fs_.rename(temporary_, path_);
  committed_ = true;
  fs_.sync_directory(parent_directory(path_));
}

bool AtomicFile::commit_exclusive() {
  sync_and_close();
  if (!fs_.rename_exclusive(temporary_, path_)) {
    // The other's name may not be durable yet, and the caller will act on its being there.
    fs_.sync_directory(parent_directory(path_));
    return false;
  }
  committed_ = true;
  fs_.sync_directory(parent_directory(path_));
  return true;
}

}  // namespace sparsecast
