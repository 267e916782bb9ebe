// How a commit gets into the log: once, or not at all, whatever replies are lost.

#include <fmt/format.h>

#include "log/log_keys.hpp"
#include "log/log_leases.hpp"
#include "log/log_writer_state.hpp"
#include "log/records.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

std::string describe_other(const Bytes& record, const std::string& name) {
  try {
    const LogCommit other = parse_log_commit(record, name);
    return fmt::format("publisher {} of epoch {} has committed this version", to_hex(other.publisher), other.epoch);
  } catch (const Error&) {
    return "something else than this publisher's commit is in its place";
  }
}

}  // namespace

LogCommit LogWriter::State::successor(const LogCommit& before, CommitKind kind, const std::string& label) const {
  LogCommit commit;
  commit.kind = kind;
  commit.stream = before.stream;
  commit.version = before.version + 1;
  commit.epoch = before.epoch + (kind == CommitKind::kTakeover ? 1 : 0);
  commit.publisher = publisher;
  commit.previous = before.record_hash;
  commit.table_hash = before.table_hash;
  commit.base_digest = before.digest;
  commit.digest = before.digest;
  commit.elements = before.elements;
  commit.time = unix_milliseconds(reader.store().wall_now());
  commit.label = label;
  commit.keys = before.keys;
  commit.keys_version = before.keys_version;
  return commit;
}

void LogWriter::State::put_delta(const DeltaSource& delta, LogCommit& commit) {
  commit.delta_bytes = delta.bytes();
  const std::string object = delta_key({commit.version - 1, commit.version, commit.delta, commit.delta_bytes});
  const std::unique_ptr<ObjectUpload> upload = store().upload(object, commit.delta_bytes);
  delta.for_each([&](ConstBytes piece) { upload->append(piece); });
  upload->commit();
}

LogCommit LogWriter::State::attempt_commit(LogCommit commit) {
  Attempt begun{std::move(commit), {}};
  begun.record = pack(begun.commit, key());
  attempt = std::move(begun);
  return settle();
}

LogCommit LogWriter::State::settle() {
  const std::string object = commit_key(attempt->commit.version);
  if (!store().put_if_absent(object, attempt->record)) {
    const std::optional<Bytes> there = store().get(object, kMaxRecordBytes);
    if (!there) throw Error(ErrorCode::kIo, "there is such an object, and it cannot be read", name_of(object));
    if (*there != attempt->record) {
      attempt.reset();
      standing = Standing::kFenced;
      throw Error(ErrorCode::kFenced, describe_other(*there, name_of(object)), name_of(object));
    }
  }
  head = std::move(attempt->commit);
  attempt.reset();
  standing = Standing::kLeading;
  reader.remember(*head);
  enter_commit(*head);
  return *head;
}

}  // namespace sparsecast
