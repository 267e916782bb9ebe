// Copies of large objects, hashed on their way to the disk.

#include <fmt/format.h>

#include <algorithm>

#include "log/log_keys.hpp"
#include "log/log_reader_state.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

/// Large enough that a store can read its parts in parallel.
constexpr std::uint64_t kFetchWindowBytes = std::uint64_t{64} << 20;

/// A file that appears under its name when it is whole. Not synced: what is fetched can be fetched again.
class FetchedFile {
 public:
  FetchedFile(FileSystem& fs, const std::string& path)
      : fs_(fs), path_(path), temporary_(path + ".part"), file_(fs.open(temporary_, OpenMode::kCreate)) {}
  ~FetchedFile() {
    if (finished_) return;
    file_.reset();
    try {
      fs_.remove(temporary_);
    } catch (...) {
      // The next fetch of this name begins it anew.
    }
  }
  FetchedFile(const FetchedFile&) = delete;
  FetchedFile& operator=(const FetchedFile&) = delete;

  File& file() noexcept { return *file_; }
  void finish() {
    file_.reset();
    fs_.rename(temporary_, path_);
    finished_ = true;
  }

 private:
  FileSystem& fs_;
  std::string path_;
  std::string temporary_;
  std::unique_ptr<File> file_;
  bool finished_ = false;
};

using Advance = std::function<void(std::uint64_t bytes)>;

void fetch(ObjectStore& store, const std::string& key, std::uint64_t bytes, const ContentHash& hash, FileSystem& fs,
           const std::string& path, const Advance& advance) {
  const std::string name = store.location() + "/" + key;
  const std::optional<std::uint64_t> size = store.size(key);
  if (!size) throw Error(ErrorCode::kGone, "there is no such object (any more)", name);
  if (*size != bytes) {
    throw Error(ErrorCode::kMixed, fmt::format("it has {} bytes, not the {} that are named", *size, bytes), name);
  }
  FetchedFile target(fs, path);
  ContentHasher hasher;
  Bytes window(std::min(bytes, kFetchWindowBytes));
  for (std::uint64_t at = 0; at < bytes; at += window.size()) {
    const std::span<std::byte> part = std::span(window).first(std::min<std::uint64_t>(window.size(), bytes - at));
    store.get_range(key, at, part);
    hasher.append(part);
    target.file().write_at(at, part);
    if (advance) advance(part.size());
  }
  if (hasher.finish() != hash) throw Error(ErrorCode::kMixed, "its bytes are not the ones named: another hash", name);
  target.finish();
}

}  // namespace

void LogReader::fetch_delta(const DeltaRef& ref, FileSystem& fs, const std::string& path) {
  fetch(store(), delta_key(ref), ref.bytes, ref.hash, fs, path, nullptr);
}

void LogReader::fetch_anchor(const LogAnchor& anchor, FileSystem& fs, const std::string& directory,
                             const std::function<void(std::uint64_t done, std::uint64_t total)>& progress) {
  const std::string from = anchor_directory({anchor.version, anchor.record_hash, anchor.bytes()});
  std::uint64_t done = 0;
  for (const LogAnchor::FileEntry& file : anchor.files) {
    fetch(store(), from + "/" + file.name, file.bytes, file.hash, fs, directory + "/" + file.name,
          [&](std::uint64_t bytes) {
            done += bytes;
            if (progress) progress(done, anchor.bytes());
          });
  }
}

}  // namespace sparsecast
