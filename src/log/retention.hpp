#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "log/log_leases.hpp"
#include "sparsecast/delta_log.hpp"

namespace sparsecast {

/// Whether a key is that of a file which AtomicFile has not renamed (yet): "NAME.tmp.DIGITS.DIGITS".
bool is_temporary_key(const std::string& key);

/// When a lease ends to count: as it says, but never longer than the policy allows from its renewal, by whichever
/// clock.
std::chrono::milliseconds end_of(const StoredLease& stored, const RetentionPolicy& policy);

/// The live lease that needs the oldest version; null when there is none.
const StoredLease* most_demanding(const std::vector<StoredLease>& leases, const StreamId& stream,
                                  std::chrono::milliseconds now, const RetentionPolicy& policy);

/// Everything that decides what is kept.
struct RetentionView {
  StreamId stream;
  std::uint64_t floor = 0;
  std::uint64_t head = 0;
  std::chrono::milliseconds now{0};
  RetentionPolicy policy;
  LogCatalog catalog;              ///< Without what lies below the floor.
  std::vector<AnchorRef> anchors;  ///< Whose records are there and good.
};

/// What garbage collection makes of the objects that a listing shows.
struct RetentionPlan {
  std::vector<StoredObject> doomed;  ///< In the order of removal: an anchor's record before its files.
  std::uint64_t kept_bytes = 0;      ///< Of deltas, merged deltas and anchors.
};

/// `delta_of` gives the content hash that the commit of a version names; it is asked only where several objects claim
/// one version.
RetentionPlan plan_removal(const std::vector<StoredObject>& objects, const std::vector<StoredLease>& leases,
                           const RetentionView& view,
                           const std::function<ContentHash(std::uint64_t version)>& delta_of);

}  // namespace sparsecast
