// SPDX-License-Identifier: Apache-2.0
#include "log/follower/follower_state.hpp"

#include <fmt/format.h>

#include "log/format/envelope.hpp"
#include "log/format/record_fields.hpp"
#include "log/format/records.hpp"

namespace sparsecast {
namespace {

constexpr const char* kKind = "follower";

std::optional<FollowerState::Position> position_of(Fields& fields, const std::string& name) {
  const nlohmann::json& list = fields.array("target", 1);
  if (list.empty()) return std::nullopt;
  const nlohmann::json& entry = list.front();
  if (!entry.is_array() || entry.size() != 2 || !entry[0].is_number_unsigned() ||
      entry[0].get<std::uint64_t>() >= kMaxVersion || !entry[1].is_string()) {
    fields.refuse("target", "a version and a digest are expected");
  }
  try {
    return FollowerState::Position{entry[0].get<std::uint64_t>(), {hash_from_hex(entry[1].get<std::string>())}};
  } catch (const Error& error) {
    throw Error(ErrorCode::kCorrupt, "field 'target': " + error.message(), name);
  }
}

std::optional<std::uint64_t> notified_of(Fields& fields) {
  const nlohmann::json& list = fields.array("notified", 1);
  if (list.empty()) return std::nullopt;
  if (!list[0].is_number_unsigned() || list[0].get<std::uint64_t>() >= kMaxVersion) {
    fields.refuse("notified", "a version is expected");
  }
  return list[0].get<std::uint64_t>();
}

}  // namespace

Bytes pack(const FollowerState& state) {
  nlohmann::json keys = nlohmann::json::array();
  for (const PublicKey& key : state.seen.keys) keys.push_back(to_string(key));
  nlohmann::json target = nlohmann::json::array();
  if (state.target) target.push_back({state.target->version, to_hex(state.target->digest.value)});
  nlohmann::json notified = nlohmann::json::array();
  if (state.notified) notified.push_back(*state.notified);
  return make_record(kKind,
                     {{"stream", to_hex(state.seen.stream)},
                      {"seen", state.seen.version},
                      {"commit", to_hex(state.seen.record_hash)},
                      {"epoch", state.seen.epoch},
                      {"publisher", to_hex(state.seen.publisher)},
                      {"table", to_hex(state.seen.table_hash)},
                      {"digest", to_hex(state.seen.digest.value)},
                      {"keys", std::move(keys)},
                      {"keys_version", state.seen.keys_version},
                      {"target", std::move(target)},
                      {"notified", std::move(notified)}},
                     nullptr);
}

FollowerState parse_follower_state(ConstBytes record, const std::string& name) {
  const OpenedRecord opened = open_record(kKind, record, name);
  Fields fields(opened.fields, name);
  FollowerState state;
  state.seen.stream = fields.hash128("stream");
  state.seen.version = fields.integer("seen", kMaxVersion);
  state.seen.record_hash = fields.content_hash("commit");
  state.seen.epoch = fields.integer("epoch");
  state.seen.publisher = fields.hash128("publisher");
  state.seen.table_hash = fields.hash128("table");
  state.seen.digest.value = fields.hash128("digest");
  for (const nlohmann::json& key : fields.array("keys", kMaxKeys))
    state.seen.keys.push_back(fields.public_key(key, "keys"));
  state.seen.keys_version = fields.integer("keys_version", kMaxVersion);
  state.target = position_of(fields, name);
  state.notified = notified_of(fields);
  fields.finish();
  if (state.seen.epoch == 0) fields.refuse("epoch", "begins with 1");
  if (state.seen.keys_version > state.seen.version) fields.refuse("keys_version", "is later than the version itself");
  return state;
}

std::optional<FollowerState> load_follower_state(FileSystem& fs, const std::string& path) {
  if (!fs.exists(path)) return std::nullopt;
  const std::unique_ptr<File> file = fs.open(path, OpenMode::kRead);
  const std::uint64_t size = file->size();
  try {
    if (size > kMaxRecordBytes) throw Error(ErrorCode::kCorrupt, fmt::format("it has {} bytes", size), path);
    Bytes bytes(size);
    file->read_at(0, bytes);
    return parse_follower_state(bytes, path);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kIo) throw;
    throw Error(ErrorCode::kCorrupt,
                fmt::format("the follower's state file is damaged ({}). It keeps the follower from going back to an "
                            "older or another log. If you trust the log as it is now, remove the file: the target's "
                            "version is then found by its digest",
                            error.message()),
                path);
  }
}

void save_follower_state(FileSystem& fs, const std::string& path, const FollowerState& state) {
  AtomicFile file(fs, path);
  file.append(pack(state));
  file.commit();
}

void remove_stale_state(FileSystem& fs, const std::string& path) {
  const std::string directory = parent_directory(path);
  const std::string prefix = path.substr(path.rfind('/') + 1) + ".tmp.";
  for (const std::string& name : fs.list(directory)) {
    if (name.starts_with(prefix)) fs.remove(directory + "/" + name);
  }
}

}  // namespace sparsecast
