// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sparsecast/delta_log.hpp"

namespace sparsecast {

/// A lease object. An unreadable lease counts as one for the first version that expires an hour after it was written.
struct StoredLease {
  LogLease lease;
  std::chrono::milliseconds modified{0};  ///< Time of the last change since 1970, by the store's clock.
  bool broken = false;
};

inline std::chrono::milliseconds unix_milliseconds(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch());
}

/// Returns all leases in the store, live or expired, of any stream.
std::vector<StoredLease> read_leases(ObjectStore& store);

/// Returns whether a key names a file that AtomicFile has not renamed (yet): "NAME.tmp.DIGITS.DIGITS".
bool is_temporary_key(const std::string& key);

/// Returns the time at which a lease expires: the time it states, but never later than the policy allows after its
/// renewal, by either clock.
std::chrono::milliseconds end_of(const StoredLease& stored, const RetentionPolicy& policy);

/// Returns the live lease that needs the oldest version, or null when there is none.
const StoredLease* most_demanding(const std::vector<StoredLease>& leases, const StreamId& stream,
                                  std::chrono::milliseconds now, const RetentionPolicy& policy);

/// Facts that decide which objects are kept.
struct RetentionView {
  StreamId stream;
  std::uint64_t floor = 0;
  std::uint64_t head = 0;
  std::chrono::milliseconds now{0};
  RetentionPolicy policy;
  LogCatalog catalog;              ///< The catalog without entries below the floor.
  std::vector<AnchorRef> anchors;  ///< Anchors whose records exist and are valid.
};

/// Decision of garbage collection about the objects of a listing.
struct RetentionPlan {
  std::vector<StoredObject> doomed;  ///< In the order of removal: an anchor's record before its files.
  std::uint64_t kept_bytes = 0;      ///< Bytes of the deltas, merged deltas and anchors that are kept.
};

/// Decides which objects to remove. `delta_of` returns the content hash that the commit of a version names; it is
/// called only if several objects claim one version.
RetentionPlan plan_removal(const std::vector<StoredObject>& objects, const std::vector<StoredLease>& leases,
                           const RetentionView& view,
                           const std::function<ContentHash(std::uint64_t version)>& delta_of);

}  // namespace sparsecast
