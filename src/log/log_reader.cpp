#include "log/log_keys.hpp"
#include "log/log_leases.hpp"
#include "log/log_reader_state.hpp"
#include "log/records.hpp"
#include "sparsecast/error.hpp"

#include <fmt/format.h>

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
      throw Error(ErrorCode::kExpired,
                  fmt::format("the newest version is {} s old, more than the {} s that are allowed", age.count() / 1000,
                              trust().max_age.count() / 1000),
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

}  // namespace sparsecast
