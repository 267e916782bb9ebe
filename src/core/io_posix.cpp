// SPDX-License-Identifier: Apache-2.0

// The operating system's file system behind the one I/O interface.

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "sparsecast/error.hpp"
#include "sparsecast/io.hpp"

namespace sparsecast {
namespace {

[[noreturn]] void fail(const char* operation, const std::string& path, int error) {
  throw Error(ErrorCode::kIo, fmt::format("{} failed: {}", operation, std::strerror(error)), path);
}

/// Throws Error{kUsage} for text that other programs do not take for a local path: "scheme:/...", "~/..." and
/// "$HOME/...". A file or directory of such a name is reached as "./...".
void require_local(const std::string& path) {
  const bool variable = path.size() > 1 && path[0] == '$' &&
                        (path[1] == '{' || path[1] == '_' || std::isalpha(static_cast<unsigned char>(path[1])) != 0);
  if (variable || path == "~" || path.starts_with("~/")) {
    throw Error(
        ErrorCode::kUsage,
        fmt::format("begins with what only a shell replaces, '{}': give the whole path, or './{}' for a directory "
                    "of this name",
                    path.substr(0, path.find('/')), path),
        path);
  }
  const std::size_t end = path.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.");
  const bool has_scheme = end != std::string::npos && end >= 2 && path.compare(end, 2, ":/") == 0 &&
                          std::isalpha(static_cast<unsigned char>(path.front())) != 0;
  if (!has_scheme) return;
  throw Error(
      ErrorCode::kUsage,
      fmt::format("is no local path, which has no '{}/' before it. Only the location of a log can be a bucket: "
                  "s3://BUCKET/PREFIX, also of other stores that speak S3 (AWS_ENDPOINT_URL_S3). A file of this "
                  "name is './{}'",
                  path.substr(0, end + 1), path),
      path);
}

/// Whether stat() failed because nothing is there; a symbolic link that leads to itself leads nowhere.
bool is_nothing(int error) { return error == ENOENT || error == ENOTDIR || error == ELOOP; }

/// Repeats a call as long as signals interrupt it.
template <class Call>
auto retry(const Call& call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

// Linux transfers at most this many bytes in one call.
constexpr std::size_t kMaxTransfer = std::size_t{1} << 30;

bool are_one_file(const std::string& a, const std::string& b) {
  struct stat of_a {};
  struct stat of_b {};
  if (::stat(a.c_str(), &of_a) != 0) fail("stat", a, errno);
  if (::stat(b.c_str(), &of_b) != 0) return false;
  return of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

class PosixFile : public File {
 public:
  PosixFile(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
  ~PosixFile() override { ::close(descriptor_); }
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;

  std::uint64_t size() override {
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0) fail("fstat", path_, errno);
    return static_cast<std::uint64_t>(status.st_size);
  }

  void read_at(std::uint64_t offset, std::span<std::byte> buffer) override {
    while (!buffer.empty()) {
      const ssize_t got = retry([&] {
        return ::pread(descriptor_, buffer.data(), std::min(buffer.size(), kMaxTransfer), static_cast<off_t>(offset));
      });
      if (got < 0) fail("read", path_, errno);
      if (got == 0) {
        throw Error(ErrorCode::kIo, fmt::format("the file ends at offset {}: nothing to read at {}", size(), offset),
                    path_);
      }
      offset += static_cast<std::uint64_t>(got);
      buffer = buffer.subspan(static_cast<std::size_t>(got));
    }
  }

  void write_at(std::uint64_t offset, std::span<const std::byte> buffer) override {
    while (!buffer.empty()) {
      const ssize_t put = retry([&] {
        return ::pwrite(descriptor_, buffer.data(), std::min(buffer.size(), kMaxTransfer), static_cast<off_t>(offset));
      });
      if (put <= 0) fail("write", path_, put < 0 ? errno : EIO);
      offset += static_cast<std::uint64_t>(put);
      buffer = buffer.subspan(static_cast<std::size_t>(put));
    }
  }

  void truncate(std::uint64_t size) override {
    if (retry([&] { return ::ftruncate(descriptor_, static_cast<off_t>(size)); }) != 0) fail("truncate", path_, errno);
  }

  void sync() override {
    if (::fsync(descriptor_) != 0) fail("fsync", path_, errno);
  }

 private:
  int descriptor_;
  std::string path_;
};

/// Throws the error of a failed open; the message says so if `path` is a link to nothing.
[[noreturn]] void fail_open(const std::string& path, int error) {
  std::error_code no_link;
  const std::filesystem::path target = std::filesystem::read_symlink(path, no_link);
  if (error != ENOENT || no_link) fail("open", path, error);
  throw Error(ErrorCode::kIo, fmt::format("a link to '{}', where nothing is", target.string()), path);
}

/// Opens an existing file. A pipe, whose writer may never come, is not waited for: whatever is no regular file is
/// Error{kIo}.
int open_regular(const std::string& path, int flags) {
  const int descriptor = retry([&] { return ::open(path.c_str(), flags | O_NONBLOCK); });
  if (descriptor < 0) fail_open(path, errno);
  struct stat found {};
  const int error = ::fstat(descriptor, &found) != 0 ? errno : 0;
  if (error == 0 && S_ISREG(found.st_mode)) return descriptor;
  ::close(descriptor);
  if (error != 0) fail("fstat", path, error);
  throw Error(ErrorCode::kIo, "not a regular file", path);
}

class PosixFileSystem : public FileSystem {
 public:
  std::unique_ptr<File> open(const std::string& path, OpenMode mode) override {
    require_local(path);
    int flags = O_CLOEXEC;
    switch (mode) {
      case OpenMode::kRead:
        flags |= O_RDONLY;
        break;
      case OpenMode::kReadWrite:
        flags |= O_RDWR;
        break;
      case OpenMode::kCreate:
        flags |= O_RDWR | O_CREAT | O_TRUNC;
        break;
      case OpenMode::kCreateExclusive:
      case OpenMode::kCreatePrivate:
        flags |= O_RDWR | O_CREAT | O_EXCL;
        break;
    }
    if ((flags & O_CREAT) == 0) return std::make_unique<PosixFile>(open_regular(path, flags), path);
    const mode_t permissions = mode == OpenMode::kCreatePrivate ? 0600 : 0666;
    const int descriptor = retry([&] { return ::open(path.c_str(), flags, permissions); });
    if (descriptor < 0) fail("open", path, errno);
    return std::make_unique<PosixFile>(descriptor, path);
  }

  bool exists(const std::string& path) override {
    require_local(path);
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0) return true;
    if (!is_nothing(errno)) fail("stat", path, errno);
    return false;
  }

  bool is_directory(const std::string& path) override {
    require_local(path);
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0) return S_ISDIR(status.st_mode);
    if (!is_nothing(errno)) fail("stat", path, errno);
    return false;
  }

  bool is_link(const std::string& path) override {
    struct stat status {};
    if (::lstat(path.c_str(), &status) == 0) return S_ISLNK(status.st_mode);
    if (errno != ENOENT && errno != ENOTDIR) fail("lstat", path, errno);
    return false;
  }

  std::uint64_t names(const std::string& path) override {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) fail("stat", path, errno);
    return status.st_nlink;
  }

  std::string resolved(const std::string& path) override {
    std::error_code nothing_there;
    const std::filesystem::path real = std::filesystem::canonical(path, nothing_there);
    return real.empty() ? path : real.string();
  }

  bool link(const std::string& from, const std::string& to) override {
    if (::link(from.c_str(), to.c_str()) == 0) return true;
    if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS && errno != EMLINK && errno != EXDEV) {
      fail(fmt::format("link as '{}'", to).c_str(), from, errno);
    }
    return false;
  }

  void make_directory(const std::string& path) override {
    require_local(path);
    if (::mkdir(path.c_str(), 0777) != 0 && !(errno == EEXIST && is_directory(path))) fail("mkdir", path, errno);
  }

  bool is_private(const std::string& path) override {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) fail("stat", path, errno);
    return (status.st_mode & (S_IRWXG | S_IRWXO)) == 0;
  }

  std::vector<std::string> list(const std::string& path) override {
    DIR* directory = ::opendir(path.c_str());
    if (directory == nullptr) fail("opendir", path, errno);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(directory)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
      errno = 0;
    }
    const int error = errno;
    ::closedir(directory);
    if (error != 0) fail("readdir", path, error);
    std::sort(names.begin(), names.end());
    return names;
  }

  void rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) fail(fmt::format("rename to '{}'", to).c_str(), from, errno);
  }

  bool rename_exclusive(const std::string& from, const std::string& to) override {
    const std::string operation = fmt::format("link as '{}'", to);
    if (::link(from.c_str(), to.c_str()) == 0) {
      remove(from);
      return true;
    }
    if (errno == EEXIST) {
      // A network file system may have made the link and lost the reply: then both names refer to one file.
      if (!are_one_file(from, to)) return false;
      remove(from);
      return true;
    }
    if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS) fail(operation.c_str(), from, errno);
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return true;
    if (errno == EEXIST) return false;
    fail(operation.c_str(), from, errno);
  }

  void remove(const std::string& path) override {
    if (::remove(path.c_str()) != 0) fail("remove", path, errno);
  }

  void sync_directory(const std::string& path) override {
    const int descriptor = retry([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    if (descriptor < 0) fail("open directory", path, errno);
    const int result = ::fsync(descriptor);
    const int error = errno;
    ::close(descriptor);
    if (result != 0) fail("fsync of the directory", path, error);
  }

  std::chrono::system_clock::time_point modified(const std::string& path) override {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) fail("stat", path, errno);
    return std::chrono::system_clock::time_point(std::chrono::duration_cast<std::chrono::system_clock::duration>(
        std::chrono::seconds(status.st_mtim.tv_sec) + std::chrono::nanoseconds(status.st_mtim.tv_nsec)));
  }

  std::chrono::steady_clock::time_point now() override { return std::chrono::steady_clock::now(); }
  std::chrono::system_clock::time_point wall_now() override { return std::chrono::system_clock::now(); }
};

}  // namespace

bool FileSystem::is_link(const std::string&) { return false; }

std::uint64_t FileSystem::names(const std::string&) { return 1; }

std::string FileSystem::resolved(const std::string& path) { return path; }

bool FileSystem::link(const std::string&, const std::string&) { return false; }

std::vector<std::byte> read_file(FileSystem& fs, const std::string& path) {
  const std::unique_ptr<File> file = fs.open(path, OpenMode::kRead);
  std::vector<std::byte> bytes(file->size());
  file->read_at(0, bytes);
  return bytes;
}

FileSystem& FileSystem::posix() {
  static PosixFileSystem file_system;
  return file_system;
}

}  // namespace sparsecast
