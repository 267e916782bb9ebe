// SPDX-License-Identifier: Apache-2.0
#include "support/log_records.hpp"

#include "log/format/records.hpp"
#include "support/log_forge.hpp"

namespace sparsecast::test {
namespace {

ContentHash content(std::string_view text) { return content_hash(std::as_bytes(std::span(text))); }

Hash128 hash(std::uint64_t low) {
  Hash128 value;
  value.lo = low;
  value.hi = ~low;
  return value;
}

const char* name_of(CommitKind kind) {
  switch (kind) {
    case CommitKind::kGenesis:
      return "genesis";
    case CommitKind::kDelta:
      return "delta";
    case CommitKind::kTakeover:
      return "takeover";
    case CommitKind::kKeys:
      return "keys";
  }
  return "";
}

}  // namespace

LogCommit example_commit(CommitKind kind) {
  LogCommit commit;
  commit.kind = kind;
  commit.stream = hash(1);
  commit.version = kind == CommitKind::kGenesis ? 0 : 41;
  commit.epoch = kind == CommitKind::kGenesis ? 1 : 3;
  commit.publisher = hash(2);
  commit.table_hash = hash(3);
  commit.base_digest.value = hash(4);
  commit.digest.value = kind == CommitKind::kDelta ? hash(5) : hash(4);
  if (kind != CommitKind::kGenesis) {
    commit.previous = content("the commit before");
    commit.delta = content("the delta");
    commit.delta_bytes = 123456;
  }
  commit.changed = kind == CommitKind::kDelta ? 77 : 0;
  commit.elements = 1000;
  commit.time = std::chrono::milliseconds(1'700'000'000'123);
  commit.label = "step 41, \"quoted\"";
  commit.keys = {fixed_key(7)->public_key(), fixed_key(8)->public_key()};
  commit.keys_version = kind == CommitKind::kKeys ? 41 : 0;
  return commit;
}

LogCatalog example_catalog() {
  LogCatalog catalog;
  catalog.stream = hash(1);
  catalog.head = 41;
  catalog.deltas = {{39, 40, content("40"), 10}, {40, 41, content("41"), 11}};
  catalog.merged = {{0, 4, content("0-4"), 30}, {0, 16, content("0-16"), 90}, {12, 16, content("12-16"), 31}};
  catalog.anchors = {{0, content("anchor 0"), 2000}, {32, content("anchor 32"), 2000}};
  return catalog;
}

LogAnchor example_anchor() {
  LogAnchor anchor;
  anchor.stream = hash(1);
  anchor.version = 41;
  anchor.commit = content("the commit");
  anchor.table_hash = hash(3);
  anchor.digest.value = hash(5);
  anchor.files = {{"model-00001-of-00002.safetensors", 1500, content("first")},
                  {"model-00002-of-00002.safetensors", 500, content("second")},
                  {"model.safetensors.index.json", 200, content("index")}};
  return anchor;
}

LogFloor example_floor() {
  LogFloor floor;
  floor.stream = hash(1);
  floor.version = 32;
  return floor;
}

LogLease example_lease() {
  LogLease lease;
  lease.stream = hash(1);
  lease.name = "engine-3.rack_2";
  lease.version = 38;
  lease.renewed = std::chrono::milliseconds(1'700'000'000'123);
  lease.expires = std::chrono::milliseconds(1'700'003'600'123);
  return lease;
}

std::vector<NamedRecord> example_records() {
  std::vector<NamedRecord> records;
  const auto add = [&](const std::string& name, const std::string& kind, auto record) {
    records.push_back({name, kind, pack(record, nullptr)});
    records.push_back({name + "-signed", kind, pack(record, fixed_key(7).get())});
  };
  for (const CommitKind kind : {CommitKind::kGenesis, CommitKind::kDelta, CommitKind::kTakeover, CommitKind::kKeys}) {
    add(std::string("commit-") + name_of(kind), "commit", example_commit(kind));
  }
  add("catalog", "catalog", example_catalog());
  add("anchor", "anchor", example_anchor());
  add("floor", "floor", example_floor());
  records.push_back({"lease", "lease", pack(example_lease())});
  return records;
}

}  // namespace sparsecast::test
