// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "core/sodium.hpp"
#include "log/format/records.hpp"
#include "log/reader/retention.hpp"
#include "log/writer/log_writer_state.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

void require_options(const LogWriterOptions& options) {
  const auto refuse = [](const std::string& what) { throw Error(ErrorCode::kUsage, what); };
  std::uint32_t before = 1;
  for (const std::uint32_t span : options.merge_spans) {
    if (span <= before || span % before != 0) refuse("each merge span is a multiple of the one before, from 2 on");
    before = span;
  }
  const AnchorRule& rule = options.anchor_rule;
  if (!(rule.bytes_per_second > 0) || !(rule.seconds_per_delta >= 0)) {
    refuse("the anchor rule's bandwidth is above 0, and its time for a delta not below");
  }
  if (rule.min_versions == 0 || rule.min_versions > rule.max_versions) {
    refuse("the anchor rule's versions are at least 1, and the fewest are not more than the most");
  }
  if (options.anchor_file_bytes == 0) refuse("files of an anchor have a size");
}

void require_belongs(const DeltaSource& delta, const LogCommit& head) {
  const DeltaHeader& header = delta.header();
  const std::string context = fmt::format("delta of version {}", header.version);
  if (!(header.stream == head.stream)) {
    throw Error(ErrorCode::kForeignStream,
                fmt::format("it is of stream {}, and the log of {}", to_hex(header.stream), to_hex(head.stream)),
                context);
  }
  if (header.version != head.version + 1 || header.base_version != head.version) {
    throw Error(ErrorCode::kVersionGap,
                fmt::format("it starts from version {}, and the log ends with {}", header.base_version, head.version),
                context);
  }
  if (!(header.table_hash == head.table_hash)) {
    throw Error(ErrorCode::kTableMismatch, "it carries another tensor table than the log", context);
  }
  if (!(header.base_digest == head.digest)) {
    throw Error(ErrorCode::kWrongBase, "its base digest is not the digest of the log's head", context);
  }
}

void require_weights(ObjectStore& store, const LogCommit& head, const TensorTable& table, const StateDigest& digest) {
  const std::string& location = store.location();
  if (!(head.table_hash == table.hash())) {
    throw Error(ErrorCode::kTableMismatch, "the log carries another tensor table", location);
  }
  if (!(head.digest == digest)) {
    throw Error(ErrorCode::kWrongBase,
                fmt::format("the weights have digest {}, and the log's newest version, {}, has {}",
                            to_hex(digest.value), head.version, to_hex(head.digest.value)),
                location);
  }
}

}  // namespace

LogWriter::State::State(LogReader& log, LogWriterOptions with)
    : reader(log),
      options(std::move(with)),
      publisher(options.publisher == Hash128{} ? random_hash() : options.publisher) {
  require_options(options);
}

std::chrono::milliseconds LogWriter::State::now() { return unix_milliseconds(store().wall_now()); }

void LogWriter::State::require_leading() const {
  if (standing == Standing::kFenced) {
    throw Error(ErrorCode::kFenced, "another publisher has taken the log over", reader.store().location());
  }
  if (standing == Standing::kIdle) {
    throw Error(ErrorCode::kUsage, "the log has not been taken over by this writer", reader.store().location());
  }
}

void LogWriter::State::require_trusted_key(const LogCommit& newest) const {
  if (newest.keys.empty()) return;
  if (!options.key) {
    throw Error(ErrorCode::kUsage, "the log is signed, and this writer has no key", reader.store().location());
  }
  if (std::find(newest.keys.begin(), newest.keys.end(), options.key->public_key()) == newest.keys.end()) {
    throw Error(ErrorCode::kForeignKey,
                fmt::format("{} is not, or no more, one of the log's keys", to_string(options.key->public_key())),
                reader.store().location());
  }
}

LogCommit LogWriter::State::commit_unchanged(const LogCommit& before, LogCommit commit) {
  const DeltaSource delta = DeltaSource::unchanged(before.stream, *table, before.version, before.digest);
  commit.delta = delta.hash();
  put_delta(delta, commit);
  return attempt_commit(std::move(commit));
}

LogCommit LogWriter::State::publish(const DeltaSource& delta, const std::string& label) {
  require_leading();
  const ContentHash hash = delta.hash();
  if (attempt) {
    if (attempt->commit.kind != CommitKind::kDelta || attempt->commit.delta != hash) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("another commit of version {} may be in the log: it has to be settled first",
                              attempt->commit.version),
                  reader.store().location());
    }
    return settle();
  }
  // An earlier call may have made the commit durable and then ended with an error.
  if (head->kind == CommitKind::kDelta && head->version == delta.header().version && head->delta == hash) return *head;
  require_belongs(delta, *head);
  LogCommit commit = successor(*head, CommitKind::kDelta, label);
  commit.digest = delta.result().result_digest;
  commit.changed = delta.result().changed;
  commit.delta = hash;
  put_delta(delta, commit);
  return attempt_commit(std::move(commit));
}

LogWriter::LogWriter(LogReader& reader, LogWriterOptions options)
    : state_(std::make_unique<State>(reader, std::move(options))) {}

LogWriter::~LogWriter() = default;

LogCommit LogWriter::create(const LogCreation& creation) {
  const std::string& location = state_->store().location();
  if (!creation.table) throw Error(ErrorCode::kUsage, "a new log needs a tensor table", location);
  LogCommit genesis;
  genesis.kind = CommitKind::kGenesis;
  genesis.stream = creation.stream == StreamId{} ? random_hash() : creation.stream;
  genesis.version = creation.first_version;
  genesis.publisher = state_->publisher;
  genesis.table_hash = creation.table->hash();
  genesis.base_digest = creation.digest;
  genesis.digest = creation.digest;
  genesis.elements = creation.table->elements();
  genesis.time = state_->now();
  genesis.label = creation.label;
  genesis.keys = creation.keys;
  if (genesis.keys.empty() && state_->options.key) genesis.keys = {state_->options.key->public_key()};
  genesis.keys_version = genesis.version;
  if (genesis.version >= kMaxVersion) throw Error(ErrorCode::kUsage, "versions are below 2^53", location);
  state_->require_trusted_key(genesis);

  const auto same = [&](const LogCommit& begun) {
    return begun.kind == CommitKind::kGenesis && begun.version == genesis.version && begun.digest == genesis.digest &&
           begun.table_hash == genesis.table_hash && begun.keys == genesis.keys &&
           (creation.stream == StreamId{} || begun.stream == creation.stream);
  };
  try {
    if (state_->attempt && same(state_->attempt->commit)) return state_->settle();
    if (state_->attempt || state_->reader.head_of_any_age()) {
      throw Error(ErrorCode::kUsage, "there is a delta log already", location);
    }
    state_->table = creation.table;
    return state_->attempt_commit(std::move(genesis));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kFenced) throw;
    throw Error(ErrorCode::kUsage, "there is a delta log already", location);
  }
}

LogCommit LogWriter::take_over(std::shared_ptr<const TensorTable> table, const StateDigest& expected,
                               const std::string& label) {
  const std::string& location = state_->store().location();
  if (!table) throw Error(ErrorCode::kUsage, "a takeover needs the tensor table", location);
  if (state_->attempt) {
    const bool takeover = state_->attempt->commit.kind == CommitKind::kTakeover;
    try {
      LogCommit settled = state_->settle();
      if (takeover && settled.digest == expected && settled.table_hash == table->hash()) return settled;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kFenced || takeover) throw;  // The lost attempt is over; goes on from the log.
    }
  }
  const LogCommit before = state_->current_head();
  require_weights(state_->store(), before, *table, expected);
  state_->require_trusted_key(before);
  state_->table = std::move(table);
  return state_->commit_unchanged(before, state_->successor(before, CommitKind::kTakeover, label));
}

LogCommit LogWriter::resume(std::shared_ptr<const TensorTable> table, const StateDigest& expected) {
  const std::string& location = state_->store().location();
  if (!table) throw Error(ErrorCode::kUsage, "going on needs the tensor table", location);
  if (state_->attempt) state_->settle();
  LogCommit newest = state_->current_head();
  if (!(newest.publisher == state_->publisher)) {
    throw Error(ErrorCode::kFenced,
                fmt::format("version {} is another publisher's: this one has to take the log over", newest.version),
                location);
  }
  require_weights(state_->store(), newest, *table, expected);
  state_->require_trusted_key(newest);
  state_->table = std::move(table);
  state_->head = newest;
  state_->standing = State::Standing::kLeading;
  return newest;
}

LogCommit LogWriter::publish(const DeltaFile& delta, const std::string& label) {
  return state_->publish(DeltaSource(delta), label);
}

LogCommit LogWriter::publish(const Delta& delta, const std::string& label) {
  state_->require_leading();
  return state_->publish(DeltaSource(delta, *state_->table), label);
}

LogCommit LogWriter::set_keys(std::vector<PublicKey> keys, const std::string& label) {
  state_->require_leading();
  const std::string& location = state_->store().location();
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  if (keys.empty() || keys.size() > kMaxKeys) {
    throw Error(ErrorCode::kUsage, fmt::format("a log has 1 to {} keys", kMaxKeys), location);
  }
  const SigningKey* own = state_->key();
  if (own == nullptr || std::find(keys.begin(), keys.end(), own->public_key()) == keys.end()) {
    throw Error(ErrorCode::kUsage,
                "the key that signs a change of keys stays one of them: a new key retires an old one", location);
  }
  if (state_->attempt) {
    if (state_->attempt->commit.kind != CommitKind::kKeys || state_->attempt->commit.keys != keys) {
      throw Error(ErrorCode::kUsage, "another commit may be in the log: it has to be settled first", location);
    }
    return state_->settle();
  }
  state_->require_trusted_key(*state_->head);
  // First signs catalog and floor again, by a key that is trusted before and after, so that readers always trust the
  // signer.
  const std::uint64_t floor = state_->reader.floor();
  state_->update_catalog([](LogCatalog&) {});
  state_->write_floor(floor, state_->head->stream);
  LogCommit commit = state_->successor(*state_->head, CommitKind::kKeys, label);
  commit.keys = std::move(keys);
  commit.keys_version = commit.version;
  const LogCommit before = *state_->head;
  return state_->commit_unchanged(before, std::move(commit));
}

const LogCommit& LogWriter::head() const {
  if (!state_->head) throw Error(ErrorCode::kUsage, "the writer has not created or taken over a log");
  return *state_->head;
}

}  // namespace sparsecast
