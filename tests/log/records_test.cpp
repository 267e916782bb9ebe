// SPDX-License-Identifier: Apache-2.0

// Records against docs/delta-log.md, "Records": one form, every field with its bounds.

#include "log/format/records.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "support/expect_error.hpp"
#include "support/log_forge.hpp"
#include "support/log_records.hpp"

namespace sparsecast::test {
namespace {

using Json = nlohmann::json;

/// Parses it as the kind says, and packs it again.
Bytes parse_and_pack(const std::string& kind, const Bytes& record, const SigningKey* key) {
  if (kind == "commit") {
    LogCommit commit = parse_log_commit(record, "name");
    return pack(commit, key);
  }
  if (kind == "catalog") {
    LogCatalog catalog = parse_log_catalog(record, "name");
    return pack(catalog, key);
  }
  if (kind == "anchor") {
    LogAnchor anchor = parse_log_anchor(record, "name");
    return pack(anchor, key);
  }
  if (kind == "floor") {
    LogFloor floor = parse_log_floor(record, "name");
    return pack(floor, key);
  }
  return pack(parse_log_lease(record, "name"));
}

const SigningKey* key_of(const NamedRecord& record) {
  static const std::shared_ptr<const SigningKey> key = fixed_key(7);
  return record.name.ends_with("-signed") ? key.get() : nullptr;
}

void expect_refused(const std::string& kind, const Bytes& record, ErrorCode code, const std::string& why) {
  SCOPED_TRACE(kind + ": " + why);
  expect_error(code, [&] { parse_and_pack(kind, record, nullptr); }, {"name"});
}

/// One unsigned record of each kind.
std::vector<NamedRecord> unsigned_records() {
  std::vector<NamedRecord> records;
  for (NamedRecord& record : example_records()) {
    if (!record.name.ends_with("-signed")) records.push_back(std::move(record));
  }
  return records;
}

// If SPARSECAST_WRITE_LOG_RECORDS names a directory, the test writes the files there instead.
TEST(LogRecords, AreTheCommittedFilesByteForByte) {
  const char* directory = std::getenv("SPARSECAST_WRITE_LOG_RECORDS");
  FileSystem& fs = FileSystem::posix();
  for (const NamedRecord& record : example_records()) {
    SCOPED_TRACE(record.name);
    if (directory != nullptr) {
      AtomicFile file(fs, std::string(directory) + "/" + record.name + ".record");
      file.append(record.bytes);
      file.commit();
      continue;
    }
    const Bytes stored = read_file(fs, SPARSECAST_TESTDATA_DIR "/log/" + record.name + ".record");
    EXPECT_EQ(text_of(stored), text_of(record.bytes));
  }
}

TEST(LogRecords, ArePackedAgainAsTheyWereParsed) {
  for (const NamedRecord& record : example_records()) {
    SCOPED_TRACE(record.name);
    EXPECT_EQ(text_of(parse_and_pack(record.kind, record.bytes, key_of(record))), text_of(record.bytes));
  }
}

TEST(LogRecords, KeepEveryFieldOfACommit) {
  LogCommit commit = example_commit();
  const Bytes record = pack(commit, fixed_key(7).get());
  const LogCommit found = parse_log_commit(record, "name");
  EXPECT_EQ(found.kind, commit.kind);
  EXPECT_EQ(found.stream, commit.stream);
  EXPECT_EQ(found.version, commit.version);
  EXPECT_EQ(found.epoch, commit.epoch);
  EXPECT_EQ(found.publisher, commit.publisher);
  EXPECT_EQ(found.previous, commit.previous);
  EXPECT_EQ(found.table_hash, commit.table_hash);
  EXPECT_EQ(found.base_digest, commit.base_digest);
  EXPECT_EQ(found.digest, commit.digest);
  EXPECT_EQ(found.delta, commit.delta);
  EXPECT_EQ(found.delta_bytes, commit.delta_bytes);
  EXPECT_EQ(found.changed, commit.changed);
  EXPECT_EQ(found.elements, commit.elements);
  EXPECT_EQ(found.time, commit.time);
  EXPECT_EQ(found.label, commit.label);
  EXPECT_EQ(found.keys, commit.keys);
  EXPECT_EQ(found.keys_version, commit.keys_version);
  EXPECT_EQ(found.signer, fixed_key(7)->public_key());
  EXPECT_EQ(found.record_hash, commit.record_hash);
}

TEST(LogRecords, RefuseEveryFlippedBit) {
  std::size_t flips = 0;
  for (const NamedRecord& record : example_records()) {
    Bytes bytes = record.bytes;
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
      EXPECT_THROW(parse_and_pack(record.kind, bytes, nullptr), Error) << record.name << ", bit " << bit;
      bytes[bit / 8] = record.bytes[bit / 8];
      ++flips;
    }
  }
  EXPECT_GT(flips, 50'000U);
}

TEST(LogRecords, RefuseEveryCut) {
  for (const NamedRecord& record : example_records()) {
    for (std::size_t size = 0; size < record.bytes.size(); ++size) {
      const Bytes cut(record.bytes.begin(), record.bytes.begin() + static_cast<std::ptrdiff_t>(size));
      EXPECT_THROW(parse_and_pack(record.kind, cut, nullptr), Error) << record.name << ", " << size << " bytes";
    }
  }
}

TEST(LogRecords, RefuseMissingAndUnknownFields) {
  for (const NamedRecord& record : unsigned_records()) {
    const RecordParts parts = RecordParts::of(record.bytes);
    for (const auto& [field, value] : parts.fields.items()) {
      if (field == "signer") continue;
      RecordParts without = parts;
      without.fields.erase(field);
      expect_refused(record.kind, without.checksummed(nullptr), ErrorCode::kCorrupt, "without " + field);
    }
    RecordParts more = parts;
    more.fields["zz"] = 1;
    expect_refused(record.kind, more.checksummed(nullptr), ErrorCode::kCorrupt, "with a field more");
  }
}

TEST(LogRecords, RefuseValuesOfAnotherType) {
  const std::vector<Json> values = {
      nullptr, true, 1.5, 1.0, -1, Json::array({1}), Json::object(), Json::object({{"a", 1}})};
  for (const NamedRecord& record : unsigned_records()) {
    const RecordParts parts = RecordParts::of(record.bytes);
    for (const auto& [field, value] : parts.fields.items()) {
      if (field == "signer") continue;
      for (const Json& other : values) {
        RecordParts altered = parts;
        altered.fields[field] = other;
        expect_refused(record.kind, altered.checksummed(nullptr), ErrorCode::kCorrupt, field + " = " + other.dump());
      }
      RecordParts altered = parts;
      altered.fields[field] = value.is_string() ? Json(7) : Json("text");
      expect_refused(record.kind, altered.checksummed(nullptr), ErrorCode::kCorrupt, field + " of another type");
    }
  }
}

TEST(LogRecords, RefuseIntegersThatJsonReadersRound) {
  for (const NamedRecord& record : unsigned_records()) {
    const RecordParts parts = RecordParts::of(record.bytes);
    for (const auto& [field, value] : parts.fields.items()) {
      if (!value.is_number()) continue;
      for (const std::uint64_t number : {std::uint64_t{1} << 53, ~std::uint64_t{0}}) {
        RecordParts altered = parts;
        altered.fields[field] = number;
        expect_refused(record.kind, altered.checksummed(nullptr), ErrorCode::kCorrupt, field + " too large");
      }
    }
  }
}

TEST(LogRecords, RefuseHashesInAnotherForm) {
  for (const NamedRecord& record : unsigned_records()) {
    const RecordParts parts = RecordParts::of(record.bytes);
    for (const auto& [field, value] : parts.fields.items()) {
      if (!value.is_string() || (value.get<std::string>().size() != 32 && value.get<std::string>().size() != 64)) {
        continue;
      }
      const auto hash = value.get<std::string>();
      for (const std::string& other :
           {std::string(), hash.substr(1), hash + "0", "G" + hash.substr(1), "A" + hash.substr(1)}) {
        RecordParts altered = parts;
        altered.fields[field] = other;
        expect_refused(record.kind, altered.checksummed(nullptr), ErrorCode::kCorrupt, field + " = " + other);
      }
    }
  }
}

struct Alteration {
  std::string kind;
  std::string why;
  std::function<void(Json& fields)> alter;
};

TEST(LogRecords, RefuseWhatTheirFieldsSayTogether) {
  const std::string key = to_string(fixed_key(9)->public_key());
  const std::string zeros(64, '0');
  const std::vector<Alteration> alterations = {
      {"commit", "an unknown kind", [](Json& f) { f["kind"] = "merge"; }},
      {"commit", "epoch 0", [](Json& f) { f["epoch"] = 0; }},
      {"commit", "more changed than there is", [](Json& f) { f["changed"] = 1001; }},
      {"commit", "keys from the future", [](Json& f) { f["keys_version"] = 42; }},
      {"commit", "a genesis with a delta", [](Json& f) { f["kind"] = "genesis"; }},
      {"commit", "no delta", [&](Json& f) { f["delta"] = zeros; }},
      {"commit", "no predecessor", [&](Json& f) { f["previous"] = zeros; }},
      {"commit", "a long label", [](Json& f) { f["label"] = std::string(257, 'a'); }},
      {"commit", "a line in the label", [](Json& f) { f["label"] = "a\nb"; }},
      {"commit", "a label beyond ASCII", [](Json& f) { f["label"] = "\xC3\xA4"; }},
      {"commit", "a label with a NUL", [](Json& f) { f["label"] = std::string(1, '\0'); }},
      {"commit", "65 keys", [&](Json& f) { f["keys"] = std::vector<std::string>(65, key); }},
      {"commit", "a key that is none", [](Json& f) { f["keys"] = Json::array({"ed25519:12"}); }},
      {"commit", "a key of another algorithm", [&](Json& f) { f["keys"] = Json::array({"rsa" + key.substr(7)}); }},
      {"commit", "a key that is a number", [](Json& f) { f["keys"] = Json::array({1}); }},
      {"catalog", "a delta backwards", [](Json& f) { f["deltas"][0][0] = 40; }},
      {"catalog", "deltas out of order", [](Json& f) { std::swap(f["deltas"][0], f["deltas"][1]); }},
      {"catalog", "a delta twice", [](Json& f) { f["deltas"][1] = f["deltas"][0]; }},
      {"catalog", "a part too few", [](Json& f) { f["deltas"][0].erase(3); }},
      {"catalog", "a part too many", [](Json& f) { f["deltas"][0].push_back(1); }},
      {"catalog", "no list in the list", [](Json& f) { f["merged"][0] = 1; }},
      {"catalog", "a hash too short", [](Json& f) { f["merged"][0][2] = "ab"; }},
      {"catalog", "a hash that is a number", [](Json& f) { f["merged"][0][2] = 1; }},
      {"catalog", "a version that is a text", [](Json& f) { f["merged"][0][0] = "0"; }},
      {"catalog", "a huge version", [](Json& f) { f["deltas"][1][1] = std::uint64_t{1} << 53; }},
      {"catalog", "an anchor with a part too few", [](Json& f) { f["anchors"][0].erase(2); }},
      {"catalog", "an anchor of a negative size", [](Json& f) { f["anchors"][0][2] = -1; }},
      {"anchor", "no files", [](Json& f) { f["files"] = Json::array(); }},
      {"anchor", "files out of order", [](Json& f) { std::swap(f["files"][0], f["files"][1]); }},
      {"anchor", "a file twice", [](Json& f) { f["files"][1] = f["files"][0]; }},
      {"anchor", "a path", [](Json& f) { f["files"][0][0] = "../model.safetensors"; }},
      {"anchor", "a hidden file", [](Json& f) { f["files"][0][0] = ".model"; }},
      {"anchor", "an empty name", [](Json& f) { f["files"][0][0] = ""; }},
      {"anchor", "a name with a NUL", [](Json& f) { f["files"][0][0] = std::string("a\0b", 3); }},
      {"anchor", "its own record as a file", [](Json& f) { f["files"][0][0] = "anchor"; }},
      {"anchor", "a long name", [](Json& f) { f["files"][0][0] = std::string(129, 'a'); }},
      {"anchor", "a name that is a number", [](Json& f) { f["files"][0][0] = 1; }},
      {"lease", "an empty name", [](Json& f) { f["name"] = ""; }},
      {"lease", "a path", [](Json& f) { f["name"] = "a/b"; }},
      {"lease", "the directory above", [](Json& f) { f["name"] = ".."; }},
      {"lease", "a long name", [](Json& f) { f["name"] = std::string(129, 'a'); }},
  };
  for (const Alteration& alteration : alterations) {
    for (const NamedRecord& record : unsigned_records()) {
      if (record.name != alteration.kind && record.name != alteration.kind + "-delta") continue;
      RecordParts parts = RecordParts::of(record.bytes);
      alteration.alter(parts.fields);
      expect_refused(record.kind, parts.checksummed(nullptr), ErrorCode::kCorrupt, alteration.why);
    }
  }
}

TEST(LogRecords, HaveNoMoreEntriesThanTheirListsMayHave) {
  LogCatalog catalog = example_catalog();
  catalog.deltas.clear();
  for (std::uint64_t v = 1; v <= kMaxCatalogEntries; ++v) catalog.deltas.push_back({v - 1, v, {}, 1});
  EXPECT_EQ(parse_log_catalog(pack(catalog, nullptr), "name").deltas.size(), kMaxCatalogEntries);
  catalog.deltas.push_back({kMaxCatalogEntries, kMaxCatalogEntries + 1, {}, 1});
  expect_refused("catalog", pack(catalog, nullptr), ErrorCode::kCorrupt, "too many deltas");
}

TEST(LogRecords, AreNotPackedWithLabelsAndNamesThatWouldBeRefused) {
  LogCommit commit = example_commit();
  commit.label = "two\nlines";
  expect_error(ErrorCode::kUsage, [&] { pack(commit, nullptr); });
  commit.label = std::string(257, 'x');
  expect_error(ErrorCode::kUsage, [&] { pack(commit, nullptr); });
  LogLease lease = example_lease();
  lease.name = "../commits/1";
  expect_error(ErrorCode::kUsage, [&] { pack(lease); });
}

}  // namespace
}  // namespace sparsecast::test
