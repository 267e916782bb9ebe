// SPDX-License-Identifier: Apache-2.0
#include "log/log_leases.hpp"

#include "log/log_keys.hpp"
#include "log/records.hpp"
#include "log/retention.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

constexpr std::chrono::hours kBrokenLeaseTime{1};

StoredLease read_lease(const StoredObject& object, const Bytes& record, const std::string& location) {
  StoredLease stored;
  stored.modified = unix_milliseconds(object.modified);
  const std::string name = object.key.substr(std::string_view(kLeasePrefix).size());
  try {
    stored.lease = parse_log_lease(record, location + "/" + object.key);
    if (stored.lease.name == name) return stored;
  } catch (const Error&) {
  }
  stored.broken = true;
  stored.lease = {};
  stored.lease.name = name;
  stored.lease.renewed = stored.modified;
  stored.lease.expires = stored.modified + kBrokenLeaseTime;
  return stored;
}

}  // namespace

std::vector<StoredLease> read_leases(ObjectStore& store) {
  std::vector<StoredLease> leases;
  for (const StoredObject& object : store.list(kLeasePrefix)) {
    if (is_temporary_key(object.key)) continue;  // Not there yet, or never.
    std::optional<Bytes> record;
    try {
      record = store.get(object.key, kMaxRecordBytes);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorrupt) throw;
      record.emplace();  // Too large: broken.
    }
    if (record) leases.push_back(read_lease(object, *record, store.location()));
  }
  return leases;
}

}  // namespace sparsecast
