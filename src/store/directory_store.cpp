// SPDX-License-Identifier: Apache-2.0

// Stores objects as files. Visibility and durability are those of FileSystem: a file appears complete under its name
// (by rename, or by link if it must not replace another), after its bytes have been synced. Its directory is synced
// before the call returns.

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "core/file_tree.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/object_store.hpp"
#include "store/object_key.hpp"

namespace sparsecast {
namespace {

class FileUpload : public ObjectUpload {
 public:
  FileUpload(FileSystem& fs, const std::string& path) : file_(fs, path) {}
  void append(ConstBytes bytes) override { file_.append(bytes); }
  void commit() override { file_.commit(); }

 private:
  AtomicFile file_;
};

class DirectoryStore : public ObjectStore {
 public:
  DirectoryStore(FileSystem& fs, const std::string& directory) : fs_(fs), root_(without_trailing_slashes(directory)) {
    if (root_.empty()) throw Error(ErrorCode::kUsage, "the directory of a delta log has no name");
    if (!fs_.is_directory(settled_path(fs_, root_)) && fs_.exists(root_)) {
      throw Error(ErrorCode::kUsage, "is no directory, and so no delta log", root_);
    }
  }

  const std::string& location() const noexcept override { return root_; }

  void put(const std::string& key, ConstBytes bytes) override {
    AtomicFile file(fs_, writable_path(key));
    file.append(bytes);
    file.commit();
  }

  bool put_if_absent(const std::string& key, ConstBytes bytes) override {
    AtomicFile file(fs_, writable_path(key));
    file.append(bytes);
    return file.commit_exclusive();
  }

  std::unique_ptr<ObjectUpload> upload(const std::string& key, std::uint64_t) override {
    return std::make_unique<FileUpload>(fs_, writable_path(key));
  }

  std::optional<Bytes> get(const std::string& key, std::uint64_t max_bytes) override {
    const std::unique_ptr<File> file = open_if_there(key);
    if (!file) return std::nullopt;
    const std::uint64_t size = file->size();
    if (size > max_bytes) {
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("it has {} bytes, more than the {} that it can have", size, max_bytes), path_of(key));
    }
    Bytes bytes(size);
    file->read_at(0, bytes);
    return bytes;
  }

  std::optional<std::uint64_t> size(const std::string& key) override {
    const std::unique_ptr<File> file = open_if_there(key);
    if (!file) return std::nullopt;
    return file->size();
  }

  void get_range(const std::string& key, std::uint64_t offset, std::span<std::byte> buffer) override {
    const std::unique_ptr<File> file = open_if_there(key);
    if (!file) throw Error(ErrorCode::kGone, "there is no such object", path_of(key));
    const std::uint64_t size = file->size();
    if (offset > size || buffer.size() > size - offset) {
      throw Error(ErrorCode::kCorrupt, fmt::format("it ends at byte {}, before byte {}", size, offset + buffer.size()),
                  path_of(key));
    }
    file->read_at(offset, buffer);
  }

  std::vector<StoredObject> list(const std::string& prefix) override {
    std::vector<StoredObject> objects;
    std::set<std::string> seen;
    collect("", prefix, seen, objects);
    std::sort(objects.begin(), objects.end(),
              [](const StoredObject& a, const StoredObject& b) { return a.key < b.key; });
    return objects;
  }

  void remove(const std::string& key) override {
    const std::string path = path_of(key);
    if (!is_file(path)) return;
    try {
      fs_.remove(path);
    } catch (const Error&) {
      if (fs_.exists(path)) throw;  // Otherwise another collector has removed it.
    }
    fs_.sync_directory(parent_directory(path));
  }

  std::chrono::system_clock::time_point wall_now() override { return fs_.wall_now(); }

 private:
  std::string path_of(const std::string& key) const {
    require_object_key(key);
    return root_ + "/" + key;
  }

  /// Returns the path of `key`, after creating all its directories durably.
  std::string writable_path(const std::string& key) {
    const std::string path = path_of(key);
    make_directories(parent_directory(path));
    return path;
  }

  void make_directories(const std::string& directory) {
    {
      const std::lock_guard lock(mutex_);
      if (known_directories_.contains(directory)) return;
    }
    if (!fs_.is_directory(directory)) {
      make_directories(parent_directory(directory));
      fs_.make_directory(directory);
    }
    // Also done for a directory that already existed, because its creator may have crashed before syncing.
    fs_.sync_directory(parent_directory(directory));
    const std::lock_guard lock(mutex_);
    known_directories_.insert(directory);
  }

  /// Returns whether `path` is an object. A directory is not: "commits" is absent if "commits/1" exists.
  bool is_file(const std::string& path) { return fs_.exists(path) && !fs_.is_directory(path); }

  std::unique_ptr<File> open_if_there(const std::string& key) {
    const std::string path = path_of(key);
    if (!is_file(path)) return nullptr;
    try {
      return fs_.open(path, OpenMode::kRead);
    } catch (const Error&) {
      if (!fs_.exists(path)) return nullptr;  // Removed meanwhile.
      throw;
    }
  }

  /// Lists each directory once, even if links lead to it again, possibly in a cycle. `seen` holds the resolved paths of
  /// the directories listed.
  void collect(const std::string& below, const std::string& prefix, std::set<std::string>& seen,
               std::vector<StoredObject>& objects) {
    const std::string directory = below.empty() ? root_ : root_ + "/" + below;
    if (!fs_.is_directory(directory) || !seen.insert(fs_.resolved(directory)).second) return;
    for (const std::string& name : fs_.list(directory)) {
      const std::string key = below.empty() ? name : below + "/" + name;
      if (!is_object_key(key)) continue;  // Foreign files, such as "lost+found".
      if (!key.starts_with(prefix) && !prefix.starts_with(key + "/")) continue;
      if (fs_.is_directory(root_ + "/" + key)) {
        collect(key, prefix, seen, objects);
      } else if (const auto object = describe(key)) {
        objects.push_back(*object);
      }
    }
  }

  std::optional<StoredObject> describe(const std::string& key) {
    const std::string path = root_ + "/" + key;
    try {
      return StoredObject{key, fs_.open(path, OpenMode::kRead)->size(), fs_.modified(path)};
    } catch (const Error&) {
      if (!fs_.exists(path)) return std::nullopt;
      throw;
    }
  }

  FileSystem& fs_;
  std::string root_;
  std::mutex mutex_;
  std::set<std::string> known_directories_;
};

}  // namespace

std::unique_ptr<ObjectStore> open_directory_store(FileSystem& fs, const std::string& directory) {
  return std::make_unique<DirectoryStore>(fs, directory);
}

std::unique_ptr<ObjectStore> open_object_store(FileSystem& fs, const std::string& location,
                                               std::optional<std::chrono::milliseconds> deadline) {
  if (location.starts_with("s3://")) {
    S3Options options = S3Options::from_environment(fs, location);
    if (deadline) options.deadline = *deadline;
    return open_s3_store(options);
  }
  return open_directory_store(fs, location);
}

}  // namespace sparsecast
