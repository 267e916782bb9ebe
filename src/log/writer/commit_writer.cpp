// SPDX-License-Identifier: Apache-2.0

// Writes a commit to the log exactly once or not at all, even if replies are lost.

#include <fmt/format.h>

#include "log/format/log_keys.hpp"
#include "log/format/records.hpp"
#include "log/reader/retention.hpp"
#include "log/writer/log_writer_state.hpp"
#include "memory/encoder.hpp"
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

DeltaSource::DeltaSource(const DeltaFile& file)
    : header_(file.header()),
      result_(file.commit()),
      pieces_{file.header_record(), file.table_record(), file.commit_record()},
      file_(&file) {}

DeltaSource::DeltaSource(const Delta& delta, const TensorTable& table) : header_(delta.info), result_(delta.result) {
  owned_.push_back(pack_table(table, delta.info.delta_id));
  pieces_.emplace_back(delta.header);
  pieces_.emplace_back(owned_.front());
  for (const Bytes& frame : delta.frames) pieces_.emplace_back(frame);
  pieces_.emplace_back(delta.commit);
}

DeltaSource DeltaSource::unchanged(const StreamId& stream, const TensorTable& table, std::uint64_t base_version,
                                   const StateDigest& digest) {
  DeltaSource source;
  source.header_ = make_header(table, EncodeOptions{}, stream, base_version, base_version + 1, digest);
  source.owned_.push_back(pack_header(source.header_));
  source.owned_.push_back(pack_table(table, source.header_.delta_id));
  source.result_.delta_id = source.header_.delta_id;
  source.result_.version = base_version + 1;
  source.result_.result_digest = digest;
  source.result_.frames_hash = xxh3_64({});
  source.owned_.push_back(pack_commit(source.result_));
  for (const Bytes& record : source.owned_) source.pieces_.emplace_back(record);
  return source;
}

std::uint64_t DeltaSource::bytes() const noexcept {
  std::uint64_t total = 0;
  for (const ConstBytes piece : pieces_) total += piece.size();
  for (std::size_t i = 0; file_ != nullptr && i < file_->frames(); ++i) total += file_->frame_bytes(i);
  return total;
}

ContentHash DeltaSource::hash() const {
  ContentHasher hasher;
  for_each([&](ConstBytes piece) { hasher.append(piece); });
  return hasher.finish();
}

void DeltaSource::for_each(const std::function<void(ConstBytes piece)>& take) const {
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    if (file_ != nullptr && i + 1 == pieces_.size()) {
      for (std::size_t f = 0; f < file_->frames(); ++f) take(file_->frame(f));
    }
    take(pieces_[i]);
  }
}

}  // namespace sparsecast
