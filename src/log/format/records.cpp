// SPDX-License-Identifier: Apache-2.0
#include "log/format/records.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "log/format/record_fields.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

struct KindName {
  CommitKind kind;
  const char* name;
};
constexpr KindName kKinds[] = {{CommitKind::kGenesis, "genesis"},
                               {CommitKind::kDelta, "delta"},
                               {CommitKind::kTakeover, "takeover"},
                               {CommitKind::kKeys, "keys"}};

CommitKind kind_of(Fields& fields) {
  const std::string& text = fields.text("kind", 16);
  for (const KindName& known : kKinds) {
    if (text == known.name) return known.kind;
  }
  fields.refuse("kind", "is unknown");
}

bool is_printable(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

nlohmann::json refs_json(const std::vector<DeltaRef>& refs) {
  nlohmann::json list = nlohmann::json::array();
  for (const DeltaRef& ref : refs) list.push_back({ref.from, ref.to, to_hex(ref.hash), ref.bytes});
  return list;
}

/// Elements of a list entry by index, checked against the same bounds as named fields.
class CatalogEntry {
 public:
  CatalogEntry(const Fields& fields, const nlohmann::json& value, const char* list, std::size_t size)
      : fields_(fields), value_(value), list_(list) {
    if (!value.is_array() || value.size() != size) fields.refuse(list, fmt::format("entries have {} parts", size));
  }
  std::uint64_t integer(std::size_t i, std::uint64_t limit = kMaxJsonInteger) const {
    if (!value_[i].is_number_unsigned() || value_[i].get<std::uint64_t>() >= limit) {
      fields_.refuse(list_, fmt::format("part {} of an entry is not an integer below {}", i, limit));
    }
    return value_[i].get<std::uint64_t>();
  }
  ContentHash hash(std::size_t i) const {
    ContentHash hash;
    try {
      if (value_[i].is_string()) return content_hash_from_hex(value_[i].get_ref<const std::string&>());
    } catch (const Error&) {
    }
    fields_.refuse(list_, fmt::format("part {} of an entry is no hash", i));
  }
  const std::string& text(std::size_t i) const {
    if (!value_[i].is_string()) fields_.refuse(list_, fmt::format("part {} of an entry is no text", i));
    return value_[i].get_ref<const std::string&>();
  }

 private:
  const Fields& fields_;
  const nlohmann::json& value_;
  const char* list_;
};

std::vector<DeltaRef> refs_of(Fields& fields, const char* key) {
  std::vector<DeltaRef> refs;
  for (const nlohmann::json& value : fields.array(key, kMaxCatalogEntries)) {
    const CatalogEntry entry(fields, value, key, 4);
    refs.push_back({entry.integer(0, kMaxVersion), entry.integer(1, kMaxVersion), entry.hash(2), entry.integer(3)});
    if (refs.back().from >= refs.back().to) fields.refuse(key, "an entry leads nowhere");
    if (refs.size() > 1) {
      const DeltaRef& before = refs[refs.size() - 2];
      if (std::pair(before.to, before.from) >= std::pair(refs.back().to, refs.back().from)) {
        fields.refuse(key, "entries are not in ascending order");
      }
    }
  }
  return refs;
}

/// Returns whether the text is a plain file name: without separators, not hidden, and not special to file systems.
bool is_file_name(const std::string& text) {
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' ||
           c == '_';
  };
  return !text.empty() && text.size() <= 128 && text.front() != '.' && text != "anchor" &&
         std::all_of(text.begin(), text.end(), good);
}

bool is_lease_name(const std::string& text) {
  return !text.empty() && text.size() <= 128 && text != "." && text != ".." &&
         text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ==
             std::string::npos;
}

std::optional<PublicKey> signer_of(const SigningKey* key) {
  return key == nullptr ? std::nullopt : std::optional(key->public_key());
}

}  // namespace

std::uint64_t LogAnchor::bytes() const noexcept {
  std::uint64_t total = 0;
  for (const FileEntry& file : files) total += file.bytes;
  return total;
}

Bytes pack(LogCommit& commit, const SigningKey* key) {
  if (commit.label.size() > kMaxLabelBytes || !is_printable(commit.label)) {
    throw Error(ErrorCode::kUsage, fmt::format("a label is at most {} bytes of printable ASCII", kMaxLabelBytes));
  }
  nlohmann::json keys = nlohmann::json::array();
  for (const PublicKey& trusted : commit.keys) keys.push_back(to_string(trusted));
  nlohmann::json fields = {{"kind", kKinds[static_cast<std::size_t>(commit.kind)].name},
                           {"stream", to_hex(commit.stream)},
                           {"version", commit.version},
                           {"epoch", commit.epoch},
                           {"publisher", to_hex(commit.publisher)},
                           {"previous", to_hex(commit.previous)},
                           {"table", to_hex(commit.table_hash)},
                           {"base_digest", to_hex(commit.base_digest.value)},
                           {"digest", to_hex(commit.digest.value)},
                           {"delta", to_hex(commit.delta)},
                           {"delta_bytes", commit.delta_bytes},
                           {"changed", commit.changed},
                           {"elements", commit.elements},
                           {"time", static_cast<std::uint64_t>(commit.time.count())},
                           {"label", commit.label},
                           {"keys", std::move(keys)},
                           {"keys_version", commit.keys_version}};
  commit.signer = signer_of(key);
  return make_record("commit", std::move(fields), key, &commit.record_hash);
}

LogCommit parse_log_commit(ConstBytes record, const std::string& name) {
  const OpenedRecord opened = open_record("commit", record, name);
  Fields fields(opened.fields, name);
  LogCommit commit;
  commit.kind = kind_of(fields);
  commit.stream = fields.hash128("stream");
  commit.version = fields.integer("version", kMaxVersion);
  commit.epoch = fields.integer("epoch");
  commit.publisher = fields.hash128("publisher");
  commit.previous = fields.content_hash("previous");
  commit.table_hash = fields.hash128("table");
  commit.base_digest.value = fields.hash128("base_digest");
  commit.digest.value = fields.hash128("digest");
  commit.delta = fields.content_hash("delta");
  commit.delta_bytes = fields.integer("delta_bytes");
  commit.changed = fields.integer("changed");
  commit.elements = fields.integer("elements");
  commit.time = std::chrono::milliseconds(fields.integer("time"));
  commit.label = fields.text("label", kMaxLabelBytes);
  if (!is_printable(commit.label)) fields.refuse("label", "is not printable ASCII");
  for (const nlohmann::json& key : fields.array("keys", kMaxKeys))
    commit.keys.push_back(fields.public_key(key, "keys"));
  commit.keys_version = fields.integer("keys_version", kMaxVersion);
  fields.finish();
  commit.signer = opened.signer;
  commit.record_hash = opened.hash;
  if (commit.epoch == 0) fields.refuse("epoch", "begins with 1");
  if (commit.changed > commit.elements) fields.refuse("changed", "is more than there are elements");
  if (commit.keys_version > commit.version) fields.refuse("keys_version", "is later than the version itself");
  const bool genesis = commit.kind == CommitKind::kGenesis;
  if (genesis != (commit.delta == ContentHash{})) fields.refuse("delta", "all commits but the genesis have one");
  if (genesis != (commit.previous == ContentHash{})) fields.refuse("previous", "all commits but the genesis have one");
  return commit;
}

Bytes pack(LogCatalog& catalog, const SigningKey* key) {
  nlohmann::json anchors = nlohmann::json::array();
  for (const AnchorRef& ref : catalog.anchors) anchors.push_back({ref.version, to_hex(ref.record_hash), ref.bytes});
  nlohmann::json fields = {{"stream", to_hex(catalog.stream)},
                           {"head", catalog.head},
                           {"deltas", refs_json(catalog.deltas)},
                           {"merged", refs_json(catalog.merged)},
                           {"anchors", std::move(anchors)}};
  catalog.signer = signer_of(key);
  return make_record("catalog", std::move(fields), key);
}

LogCatalog parse_log_catalog(ConstBytes record, const std::string& name) {
  const OpenedRecord opened = open_record("catalog", record, name);
  Fields fields(opened.fields, name);
  LogCatalog catalog;
  catalog.stream = fields.hash128("stream");
  catalog.head = fields.integer("head", kMaxVersion);
  catalog.deltas = refs_of(fields, "deltas");
  catalog.merged = refs_of(fields, "merged");
  for (const nlohmann::json& value : fields.array("anchors", kMaxCatalogEntries)) {
    const CatalogEntry entry(fields, value, "anchors", 3);
    catalog.anchors.push_back({entry.integer(0, kMaxVersion), entry.hash(1), entry.integer(2)});
  }
  fields.finish();
  catalog.signer = opened.signer;
  return catalog;
}

Bytes pack(LogAnchor& anchor, const SigningKey* key) {
  nlohmann::json files = nlohmann::json::array();
  for (const LogAnchor::FileEntry& file : anchor.files) files.push_back({file.name, file.bytes, to_hex(file.hash)});
  nlohmann::json fields = {{"stream", to_hex(anchor.stream)},       {"version", anchor.version},
                           {"commit", to_hex(anchor.commit)},       {"table", to_hex(anchor.table_hash)},
                           {"digest", to_hex(anchor.digest.value)}, {"files", std::move(files)}};
  anchor.signer = signer_of(key);
  return make_record("anchor", std::move(fields), key, &anchor.record_hash);
}

LogAnchor parse_log_anchor(ConstBytes record, const std::string& name) {
  const OpenedRecord opened = open_record("anchor", record, name);
  Fields fields(opened.fields, name);
  LogAnchor anchor;
  anchor.stream = fields.hash128("stream");
  anchor.version = fields.integer("version", kMaxVersion);
  anchor.commit = fields.content_hash("commit");
  anchor.table_hash = fields.hash128("table");
  anchor.digest.value = fields.hash128("digest");
  for (const nlohmann::json& value : fields.array("files", kMaxAnchorFiles)) {
    const CatalogEntry entry(fields, value, "files", 3);
    anchor.files.push_back({entry.text(0), entry.integer(1), entry.hash(2)});
    if (!is_file_name(anchor.files.back().name)) fields.refuse("files", "an entry has no plain file name");
    if (anchor.files.size() > 1 && anchor.files[anchor.files.size() - 2].name >= anchor.files.back().name) {
      fields.refuse("files", "entries are not in ascending order");
    }
  }
  fields.finish();
  if (anchor.files.empty()) fields.refuse("files", "is empty");
  anchor.signer = opened.signer;
  anchor.record_hash = opened.hash;
  return anchor;
}

Bytes pack(LogFloor& floor, const SigningKey* key) {
  floor.signer = signer_of(key);
  return make_record("floor", {{"stream", to_hex(floor.stream)}, {"version", floor.version}}, key);
}

LogFloor parse_log_floor(ConstBytes record, const std::string& name) {
  const OpenedRecord opened = open_record("floor", record, name);
  Fields fields(opened.fields, name);
  LogFloor floor;
  floor.stream = fields.hash128("stream");
  floor.version = fields.integer("version", kMaxVersion);
  fields.finish();
  floor.signer = opened.signer;
  return floor;
}

Bytes pack(const LogLease& lease) {
  if (!is_lease_name(lease.name)) {
    throw Error(ErrorCode::kUsage, fmt::format("'{}' is no name of a lease: 1 to 128 of [A-Za-z0-9._-]", lease.name));
  }
  return make_record("lease",
                     {{"stream", to_hex(lease.stream)},
                      {"name", lease.name},
                      {"version", lease.version},
                      {"renewed", static_cast<std::uint64_t>(lease.renewed.count())},
                      {"expires", static_cast<std::uint64_t>(lease.expires.count())}},
                     nullptr);
}

LogLease parse_log_lease(ConstBytes record, const std::string& name) {
  const OpenedRecord opened = open_record("lease", record, name);
  Fields fields(opened.fields, name);
  LogLease lease;
  lease.stream = fields.hash128("stream");
  lease.name = fields.text("name", 128);
  if (!is_lease_name(lease.name)) fields.refuse("name", "is no name of a lease");
  lease.version = fields.integer("version", kMaxVersion);
  lease.renewed = std::chrono::milliseconds(fields.integer("renewed"));
  lease.expires = std::chrono::milliseconds(fields.integer("expires"));
  fields.finish();
  return lease;
}

}  // namespace sparsecast
