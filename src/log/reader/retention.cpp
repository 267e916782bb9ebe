// SPDX-License-Identifier: Apache-2.0
#include "log/reader/retention.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "log/format/log_keys.hpp"
#include "log/format/records.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

constexpr std::chrono::hours kBrokenLeaseTime{1};

StoredLease read_lease(const StoredObject& object, const Bytes& record, const std::string& location) {
  const std::chrono::milliseconds written = unix_milliseconds(object.modified);
  StoredLease stored;
  const std::string name = object.key.substr(std::string_view(kLeasePrefix).size());
  try {
    stored.lease = parse_log_lease(record, location + "/" + object.key);
    if (stored.lease.name == name) {
      const auto time = std::max(stored.lease.expires - stored.lease.renewed, std::chrono::milliseconds(0));
      stored.lease.renewed = written;
      stored.lease.expires = written + time;
      return stored;
    }
  } catch (const Error&) {
  }
  stored.broken = true;
  stored.lease = {};
  stored.lease.name = name;
  stored.lease.renewed = written;
  stored.lease.expires = written + kBrokenLeaseTime;
  return stored;
}

}  // namespace

std::vector<StoredLease> read_leases(ObjectStore& store) {
  std::vector<StoredLease> leases;
  for (const StoredObject& object : store.list(kLeasePrefix)) {
    if (is_temporary_key(object.key)) continue;  // Not renamed yet, or abandoned.
    std::optional<Bytes> record;
    try {
      record = store.get(object.key, kMaxRecordBytes);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorrupt) throw;
      record.emplace();  // Too large to be a lease, so it counts as broken.
    }
    if (record) leases.push_back(read_lease(object, *record, store.location()));
  }
  return leases;
}

namespace {

bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// Divides objects into objects to keep and objects to remove.
class Planner {
 public:
  Planner(const RetentionView& view, const std::function<ContentHash(std::uint64_t version)>& delta_of)
      : view_(view), delta_of_(delta_of) {
    for (const DeltaRef& ref : view.catalog.merged) merged_.insert(delta_key(ref));
    for (const AnchorRef& ref : view.anchors) anchors_.insert(anchor_directory(ref));
  }

  void plan(const std::vector<StoredObject>& objects) {
    for (const StoredObject& object : objects) {
      if (is_temporary_key(object.key)) {
        if (is_old(object)) doom(object);
      } else if (object.key.starts_with(kDeltaPrefix)) {
        if (const auto ref = ref_of_delta_key(object.key)) deltas_[ref->to].push_back({object, ref->hash});
      } else if (object.key.starts_with(kMergedPrefix)) {
        plan_merged(object);
      } else if (object.key.starts_with(kAnchorPrefix)) {
        if (const auto ref = ref_of_anchor_key(object.key)) directories_[anchor_directory(*ref)].push_back(object);
      }
    }
    for (const auto& [version, claimants] : deltas_) plan_deltas(version, claimants);
    for (const auto& [directory, files] : directories_) plan_anchor(directory, files);
  }

  RetentionPlan take() { return std::move(plan_); }
  bool is_old(const StoredObject& object) const {
    return view_.now - unix_milliseconds(object.modified) > view_.policy.grace;
  }
  void doom(const StoredObject& object) { plan_.doomed.push_back(object); }

 private:
  struct Claimant {
    StoredObject object;
    ContentHash hash;
  };

  void keep(const StoredObject& object) { plan_.kept_bytes += object.bytes; }

  void plan_merged(const StoredObject& object) {
    const auto ref = ref_of_delta_key(object.key);
    if (!ref) return;  // Not an object of the log.
    const bool below = ref->from < view_.floor;
    const bool stray = !merged_.contains(object.key) && is_old(object);
    below || stray ? doom(object) : keep(object);
  }

  /// Above the head nothing is removed, because a publisher may still commit a delta, however long it takes. Up to the
  /// head, the commit names the delta that was chosen, which exists, because it was durable before the commit.
  void plan_deltas(std::uint64_t version, const std::vector<Claimant>& claimants) {
    const bool below = version <= view_.floor;
    const bool disputed = !below && version <= view_.head && claimants.size() > 1;
    const ContentHash named = disputed ? delta_of_(version) : ContentHash{};
    for (const Claimant& claimant : claimants) {
      const bool stray = disputed && claimant.hash != named && is_old(claimant.object);
      below || stray ? doom(claimant.object) : keep(claimant.object);
    }
  }

  void plan_anchor(const std::string& directory, const std::vector<StoredObject>& files) {
    const bool below = ref_of_anchor_key(files.front().key)->version < view_.floor;
    const bool stray = !anchors_.contains(directory) &&
                       std::all_of(files.begin(), files.end(), [&](const auto& file) { return is_old(file); });
    if (!below && !stray) {
      for (const StoredObject& file : files) keep(file);
      return;
    }
    // The record goes first, because it vouches for the other files.
    const std::string record = directory + "/anchor";
    for (const StoredObject& file : files) {
      if (file.key == record) doom(file);
    }
    for (const StoredObject& file : files) {
      if (file.key != record) doom(file);
    }
  }

  const RetentionView& view_;
  const std::function<ContentHash(std::uint64_t version)>& delta_of_;
  std::set<std::string> merged_;
  std::set<std::string> anchors_;
  std::map<std::uint64_t, std::vector<Claimant>> deltas_;
  std::map<std::string, std::vector<StoredObject>> directories_;
  RetentionPlan plan_;
};

}  // namespace

bool is_temporary_key(const std::string& key) {
  const std::size_t at = key.rfind(".tmp.");
  if (at == std::string::npos) return false;
  const std::string_view rest = std::string_view(key).substr(at + 5);
  const std::size_t dot = rest.find('.');
  return dot != std::string_view::npos && is_digits(rest.substr(0, dot)) && is_digits(rest.substr(dot + 1));
}

std::chrono::milliseconds end_of(const StoredLease& stored, const RetentionPolicy& policy) {
  return std::min(stored.lease.expires, stored.lease.renewed + policy.max_lease);
}

const StoredLease* most_demanding(const std::vector<StoredLease>& leases, const StreamId& stream,
                                  std::chrono::milliseconds now, const RetentionPolicy& policy) {
  const StoredLease* lowest = nullptr;
  for (const StoredLease& stored : leases) {
    if (!stored.broken && !(stored.lease.stream == stream)) continue;
    if (end_of(stored, policy) <= now) continue;
    if (lowest == nullptr || stored.lease.version < lowest->lease.version) lowest = &stored;
  }
  return lowest;
}

RetentionPlan plan_removal(const std::vector<StoredObject>& objects, const std::vector<StoredLease>& leases,
                           const RetentionView& view,
                           const std::function<ContentHash(std::uint64_t version)>& delta_of) {
  Planner planner(view, delta_of);
  planner.plan(objects);
  std::set<std::string> ended;
  for (const StoredLease& stored : leases) {
    if (end_of(stored, view.policy) + view.policy.grace < view.now) ended.insert(lease_key(stored.lease.name));
  }
  for (const StoredObject& object : objects) {
    if (ended.contains(object.key)) planner.doom(object);
  }
  return planner.take();
}

}  // namespace sparsecast
