// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sparsecast/delta_log.hpp"

namespace sparsecast {

/// A lease in the store, with times by the store's clock. The lease was renewed when its object was written, and lasts
/// from then as long as the reader has said, so that a wrong clock of the reader cannot end the lease. An unreadable
/// lease counts as a lease that needs version 0 and expires an hour after it was written.
struct StoredLease {
  LogLease lease;
  /// True if the lease is unreadable.
  bool broken = false;
};

inline std::chrono::milliseconds unix_milliseconds(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch());
}

/// Returns all leases in the store, of all streams, both live and expired.
std::vector<StoredLease> read_leases(ObjectStore& store);

/// Returns whether a key has the form "NAME.tmp.DIGITS.DIGITS", the name of a temporary file that AtomicFile has not
/// yet renamed, or never will.
bool is_temporary_key(const std::string& key);

/// Returns the time since 1970 at which a lease expires: the time that it states, but at most policy.max_lease after
/// its renewal.
std::chrono::milliseconds end_of(const StoredLease& stored, const RetentionPolicy& policy);

/// Returns the lease that needs the oldest version, among the leases of the stream that are live at time `now`; null if
/// there is none. Unreadable leases count as leases of the stream.
const StoredLease* most_demanding(const std::vector<StoredLease>& leases, const StreamId& stream,
                                  std::chrono::milliseconds now, const RetentionPolicy& policy);

/// Facts by which plan_removal() decides which objects to keep.
struct RetentionView {
  StreamId stream;
  /// Lowest version that readers can still start from. Deltas and anchors for lower versions are removed.
  std::uint64_t floor = 0;
  /// Newest version of the log.
  std::uint64_t head = 0;
  /// Current time since 1970, by the store's clock.
  std::chrono::milliseconds now{0};
  RetentionPolicy policy;
  LogCatalog catalog;              ///< The log's catalog, without entries for versions below the floor.
  std::vector<AnchorRef> anchors;  ///< Anchors whose records are in the store and valid.
};

/// Result of plan_removal(): the objects that garbage collection removes.
struct RetentionPlan {
  /// Objects to remove, in this order. The record of an anchor comes before the files of the anchor.
  std::vector<StoredObject> doomed;
  std::uint64_t kept_bytes = 0;  ///< Total size in bytes of the deltas, merged deltas and anchors that are kept.
};

/// Decides which objects to remove. `objects` are all objects of the log, and `leases` the leases among them.
/// `delta_of` returns the content hash of the delta that the commit of a version names; it is called only if several
/// objects claim to be the delta of the same version.
RetentionPlan plan_removal(const std::vector<StoredObject>& objects, const std::vector<StoredLease>& leases,
                           const RetentionView& view,
                           const std::function<ContentHash(std::uint64_t version)>& delta_of);

}  // namespace sparsecast
