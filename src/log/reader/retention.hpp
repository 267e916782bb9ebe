// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sparsecast/delta_log.hpp"

namespace sparsecast {

/// A lease in the store. Its times are by the store's clock: it was renewed when its object was written, and expires as
/// long after that as the reader said, so that a wrong clock of the reader ends no lease. An unreadable lease counts as
/// one that needs version 0 and expires an hour after it was written.
struct StoredLease {
  LogLease lease;
  /// True if the lease is unreadable.
  bool broken = false;
};

inline std::chrono::milliseconds unix_milliseconds(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch());
}

/// Returns all leases in the store, live or expired, of all streams.
std::vector<StoredLease> read_leases(ObjectStore& store);

/// Returns whether a key names a temporary file of AtomicFile, which has not been renamed (yet):
/// "NAME.tmp.DIGITS.DIGITS".
bool is_temporary_key(const std::string& key);

/// Returns the time at which a lease expires, since 1970: the time that it states, but at most policy.max_lease after
/// its renewal.
std::chrono::milliseconds end_of(const StoredLease& stored, const RetentionPolicy& policy);

/// Returns the lease of the stream, live at the time `now`, that needs the oldest version; null if there is none.
/// Unreadable leases count as leases of the stream.
const StoredLease* most_demanding(const std::vector<StoredLease>& leases, const StreamId& stream,
                                  std::chrono::milliseconds now, const RetentionPolicy& policy);

/// Facts by which plan_removal() decides which objects are kept.
struct RetentionView {
  StreamId stream;
  /// Version below which nothing is kept.
  std::uint64_t floor = 0;
  /// Newest version of the log.
  std::uint64_t head = 0;
  /// The present time since 1970, by the store's clock.
  std::chrono::milliseconds now{0};
  RetentionPolicy policy;
  LogCatalog catalog;              ///< The log's catalog, without entries below the floor.
  std::vector<AnchorRef> anchors;  ///< Anchors whose records are in the store and valid.
};

/// Which objects garbage collection removes.
struct RetentionPlan {
  /// Objects to remove, in this order: the record of an anchor comes before its files.
  std::vector<StoredObject> doomed;
  std::uint64_t kept_bytes = 0;  ///< Bytes of the deltas, merged deltas and anchors that are not removed.
};

/// Decides which of `objects`, all objects of the log, to remove; `leases` are the leases among them. `delta_of`
/// returns the content hash of the delta that the commit of a version names; it is called only if several objects claim
/// to be the delta of one version.
RetentionPlan plan_removal(const std::vector<StoredObject>& objects, const std::vector<StoredLease>& leases,
                           const RetentionView& view,
                           const std::function<ContentHash(std::uint64_t version)>& delta_of);

}  // namespace sparsecast
