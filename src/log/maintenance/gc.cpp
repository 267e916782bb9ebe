// SPDX-License-Identifier: Apache-2.0

// Garbage collection:
//
//     choose floor -> floor durable -> leases again (floor lowered?) -> catalog -> removal
//
// A reader writes its lease, then reads the floor. Whoever is second sees the other's write: the reader sees a floor
// above its version (Error{kGone}, it starts from an anchor), or the collector sees the new lease. After a crash at any
// point, the next call removes the rest.

#include <algorithm>

#include "log/format/log_keys.hpp"
#include "log/reader/retention.hpp"
#include "log/writer/log_writer_state.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

struct FloorChoice {
  std::uint64_t floor = 0;
  std::string held_by;
};

/// Returns whether every file of the anchor exists.
bool is_whole(LogReader& reader, const AnchorRef& ref) {
  try {
    const LogAnchor anchor = reader.anchor(ref);
    return std::all_of(anchor.files.begin(), anchor.files.end(), [&](const LogAnchor::FileEntry& file) {
      return reader.store().size(anchor_directory(ref) + "/" + file.name) == file.bytes;
    });
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kGone) return false;  // Another collector has removed it meanwhile.
    throw;
  }
}

}  // namespace

/// Returns the oldest version that the policy keeps, leases aside. Assumes that the times of commits ascend.
std::uint64_t LogWriter::State::oldest_kept(const LogCommit& newest, std::uint64_t floor,
                                            const RetentionPolicy& policy) {
  const std::uint64_t wanted = std::max<std::uint64_t>(policy.keep_versions, 1) - 1;
  std::uint64_t oldest = newest.version - std::min(newest.version - floor, wanted);
  const auto is_young = [&](std::uint64_t version) { return now() - existing_commit(version).time < policy.keep_time; };
  if (policy.keep_time.count() <= 0 || oldest == floor || !is_young(oldest)) return oldest;
  std::uint64_t old = floor;  // If the floor is young, too, it is the result.
  if (is_young(old)) return old;
  while (oldest - old > 1) {
    const std::uint64_t middle = old + (oldest - old) / 2;
    (is_young(middle) ? oldest : old) = middle;
  }
  return oldest;
}

GcReport LogWriter::gc(const RetentionPolicy& policy) {
  State& state = *state_;
  const LogCommit newest = state.current_head();
  state.require_trusted_key(newest);
  RetentionView view;
  view.stream = newest.stream;
  view.floor = state.reader.floor();
  view.head = newest.version;
  view.now = state.now();
  view.policy = policy;
  for (const AnchorRef& anchor : state.stored_anchors()) {
    if (is_whole(state.reader, anchor)) view.anchors.push_back(anchor);
  }
  const std::uint64_t before = view.floor;
  const std::uint64_t kept = state.oldest_kept(newest, before, policy);
  const auto newest_anchor = [&](std::uint64_t limit) {
    std::uint64_t found = before;
    for (const AnchorRef& anchor : view.anchors) {
      if (anchor.version <= limit) found = std::max(found, anchor.version);
    }
    return found;
  };
  const auto choose = [&](const std::vector<StoredLease>& leases) {
    const StoredLease* lease = most_demanding(leases, view.stream, view.now, policy);
    FloorChoice choice{newest_anchor(kept), {}};
    if (lease == nullptr || lease->lease.version >= choice.floor) return choice;
    return FloorChoice{newest_anchor(lease->lease.version), lease->lease.name};
  };

  std::vector<StoredLease> leases = read_leases(state.store());
  FloorChoice choice = choose(leases);
  if (!policy.dry_run && choice.floor > before) {
    state.write_floor(choice.floor, view.stream);
    leases = read_leases(state.store());
    const FloorChoice again = choose(leases);
    if (again.floor < choice.floor) {
      state.write_floor(again.floor, view.stream);
      choice = again;
    }
  }
  view.floor = choice.floor;
  // A collector that crashed may have raised the floor above a lease that it had not seen. The lease's reader read the
  // old floor, and still needs the versions in between.
  if (const StoredLease* lease = most_demanding(leases, view.stream, view.now, policy)) {
    view.floor = std::min(view.floor, lease->lease.version);
  }

  const auto trim = [&](LogCatalog& catalog) {
    std::erase_if(catalog.deltas, [&](const DeltaRef& ref) { return ref.from < view.floor; });
    std::erase_if(catalog.merged, [&](const DeltaRef& ref) {
      return ref.from < view.floor || state.store().size(delta_key(ref)) != ref.bytes;
    });
    // Adds anchors that the catalog lost, and drops anchors whose record is gone. Asks the store, because an anchor may
    // just have been written.
    catalog.anchors.insert(catalog.anchors.end(), view.anchors.begin(), view.anchors.end());
    std::erase_if(catalog.anchors, [&](const AnchorRef& anchor) {
      return anchor.version < view.floor || !state.store().size(anchor_record_key(anchor));
    });
    view.catalog = catalog;
  };
  if (policy.dry_run) {
    LogCatalog catalog = state.catalog_or_rebuilt();
    trim(catalog);
  } else {
    state.update_catalog(trim);
  }

  const RetentionPlan plan = plan_removal(state.store().list(""), leases, view,
                                          [&](std::uint64_t version) { return state.existing_commit(version).delta; });
  GcReport report;
  report.floor = choice.floor;
  report.kept_bytes = plan.kept_bytes;
  report.held_by = choice.held_by;
  for (const StoredObject& object : plan.doomed) {
    if (!policy.dry_run) state.store().remove(object.key);
    ++report.removed_objects;
    report.removed_bytes += object.bytes;
  }
  return report;
}

}  // namespace sparsecast
