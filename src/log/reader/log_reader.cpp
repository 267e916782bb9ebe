// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "log/format/log_keys.hpp"
#include "log/format/records.hpp"
#include "log/reader/log_reader_state.hpp"
#include "log/reader/retention.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

LogReader::LogReader(std::shared_ptr<ObjectStore> store, LogTrust trust)
    : state_(std::make_unique<State>(std::move(store), std::move(trust))) {}

LogReader::~LogReader() = default;

ObjectStore& LogReader::store() noexcept { return *state_->store; }

const LogTrust& LogReader::trust() const noexcept { return state_->trust; }

void LogReader::remember(const LogCommit& seen) {
  const std::lock_guard lock(state_->mutex);
  state_->remember(seen);
}

std::optional<LogCommit> LogReader::head() {
  std::optional<LogCommit> head = head_of_any_age();
  if (head && trust().max_age.count() > 0) {
    const auto age = unix_milliseconds(store().wall_now()) - head->time;
    if (age > trust().max_age) {
      throw Error(
          ErrorCode::kExpired,
          fmt::format("the newest version is {} s old by this machine's clock, more than the {} s that are allowed",
                      age.count() / 1000, trust().max_age.count() / 1000),
          state_->name_of(commit_key(head->version)));
    }
  }
  return head;
}

std::optional<LogCommit> LogReader::head_of_any_age() {
  const std::lock_guard lock(state_->mutex);
  return state_->find_head();
}

std::optional<LogCommit> LogReader::commit(std::uint64_t version) {
  const std::lock_guard lock(state_->mutex);
  return state_->read_commit(version);
}

std::optional<LogCatalog> LogReader::catalog() {
  const std::lock_guard lock(state_->mutex);
  return state_->read_catalog();
}

std::uint64_t LogReader::floor() {
  const std::lock_guard lock(state_->mutex);
  const std::optional<Bytes> record = store().get(kFloorKey, kMaxRecordBytes);
  if (!record) return state_->first_version();
  const std::string name = state_->name_of(kFloorKey);
  const LogFloor floor = parse_log_floor(*record, name);
  if (!state_->newest && !state_->find_head()) {
    throw Error(ErrorCode::kRolledBack, "there is a floor, and no version", name);
  }
  if (!(floor.stream == state_->newest->stream)) throw Error(ErrorCode::kReplayed, "it is of another stream", name);
  state_->keys.require_current(floor.signer, name);
  return floor.version;
}

LogAnchor LogReader::anchor(const AnchorRef& ref) {
  const std::lock_guard lock(state_->mutex);
  const std::string key = anchor_record_key(ref);
  const std::string name = state_->name_of(key);
  const std::optional<Bytes> record = store().get(key, kMaxRecordBytes);
  if (!record) throw Error(ErrorCode::kGone, "there is no such anchor (any more)", name);
  LogAnchor anchor = parse_log_anchor(*record, name);
  if (anchor.record_hash != ref.record_hash) throw Error(ErrorCode::kMixed, "it is not the anchor named so", name);
  if (anchor.version != ref.version) {
    throw Error(ErrorCode::kReplayed, fmt::format("this is the anchor of version {}", anchor.version), name);
  }
  if (ref.bytes != 0 && anchor.bytes() != ref.bytes)
    throw Error(ErrorCode::kMixed, "its size is not the one named", name);
  const std::optional<LogCommit> commit = state_->read_commit(ref.version);
  if (!commit) throw Error(ErrorCode::kMixed, "there is no commit of its version", name);
  if (!(anchor.stream == commit->stream)) throw Error(ErrorCode::kReplayed, "it is of another stream", name);
  if (anchor.commit != commit->record_hash || !(anchor.table_hash == commit->table_hash) ||
      !(anchor.digest == commit->digest)) {
    throw Error(ErrorCode::kMixed, "it is not of the commit of its version", name);
  }
  if (!state_->vouched.contains(anchor.record_hash)) state_->keys.require_current(anchor.signer, name);
  return anchor;
}

std::vector<LogLease> LogReader::leases() {
  std::optional<StreamId> stream;
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->newest) state_->find_head();
    if (state_->newest) stream = state_->newest->stream;
  }
  const std::chrono::milliseconds now = unix_milliseconds(store().wall_now());
  std::vector<LogLease> live;
  for (StoredLease& stored : read_leases(store())) {
    if (stored.lease.expires <= now || (!stored.broken && stream && !(stored.lease.stream == *stream))) continue;
    live.push_back(std::move(stored.lease));
  }
  return live;
}

// Downloads of large objects, which are hashed while they are written.

namespace {

/// Size of one read, large enough for a store to read its parts in parallel.
constexpr std::uint64_t kFetchWindowBytes = std::uint64_t{64} << 20;

/// A file that gets its name when it is complete. It is not synced, because it can be fetched again.
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
      // The next fetch of this name starts it again.
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
