// SPDX-License-Identifier: Apache-2.0

// Every writer that adds something reads, changes and replaces the catalog. If two do so at once, one update is lost.
// This only costs time: merged deltas are made again, and the next maintenance finds the anchors again.

#include <algorithm>

#include "log/format/log_keys.hpp"
#include "log/format/records.hpp"
#include "log/writer/log_writer_state.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

constexpr std::size_t kListedDeltas = 256;  ///< Most single deltas listed; older ones are found through their commits.

/// Sorts references, keeps the one added last for each pair of versions, and drops all but the newest `limit`.
void tidy(std::vector<DeltaRef>& refs, std::size_t limit) {
  const auto place = [](const DeltaRef& ref) { return std::pair(ref.to, ref.from); };
  std::reverse(refs.begin(), refs.end());
  std::stable_sort(refs.begin(), refs.end(), [&](const DeltaRef& a, const DeltaRef& b) { return place(a) < place(b); });
  refs.erase(
      std::unique(refs.begin(), refs.end(), [&](const DeltaRef& a, const DeltaRef& b) { return place(a) == place(b); }),
      refs.end());
  if (refs.size() > limit) refs.erase(refs.begin(), refs.end() - static_cast<std::ptrdiff_t>(limit));
}

void tidy(std::vector<AnchorRef>& anchors) {
  const auto place = [](const AnchorRef& ref) { return std::pair(ref.version, ref.record_hash); };
  std::sort(anchors.begin(), anchors.end(),
            [&](const AnchorRef& a, const AnchorRef& b) { return place(a) < place(b); });
  anchors.erase(std::unique(anchors.begin(), anchors.end()), anchors.end());
  if (anchors.size() > kMaxCatalogEntries) {
    anchors.erase(anchors.begin(), anchors.end() - static_cast<std::ptrdiff_t>(kMaxCatalogEntries));
  }
}

}  // namespace

LogCommit LogWriter::State::current_head() {
  std::optional<LogCommit> newest = reader.head_of_any_age();
  if (!newest) throw Error(ErrorCode::kUsage, "there is no delta log", store().location());
  return *newest;
}

LogCommit LogWriter::State::existing_commit(std::uint64_t version) {
  std::optional<LogCommit> commit = reader.commit(version);
  if (!commit) throw Error(ErrorCode::kUsage, "there is no such version", name_of(commit_key(version)));
  return *commit;
}

std::vector<AnchorRef> LogWriter::State::stored_anchors() {
  std::vector<AnchorRef> anchors;
  for (const StoredObject& object : store().list(kAnchorPrefix)) {
    std::optional<AnchorRef> ref = ref_of_anchor_key(object.key);
    if (!ref || object.key != anchor_record_key(*ref)) continue;
    try {
      ref->bytes = reader.anchor(*ref).bytes();
      anchors.push_back(*ref);
    } catch (const Error& error) {
      if (is_of_the_store(error)) throw;  // Otherwise the object is not a valid anchor.
    }
  }
  return anchors;
}

LogCatalog LogWriter::State::catalog_or_rebuilt() {
  try {
    if (std::optional<LogCatalog> catalog = reader.catalog()) return *catalog;
  } catch (const Error& error) {
    if (is_of_the_store(error)) throw;  // Otherwise the catalog is bad and is rebuilt.
  }
  const LogCommit newest = current_head();
  LogCatalog catalog;
  catalog.stream = newest.stream;
  catalog.head = newest.version;
  const std::uint64_t floor = reader.floor();
  for (const AnchorRef& anchor : stored_anchors()) {
    if (anchor.version >= floor) catalog.anchors.push_back(anchor);
  }
  return catalog;
}

void LogWriter::State::write_catalog(LogCatalog& catalog) {
  tidy(catalog.deltas, kListedDeltas);
  tidy(catalog.merged, kMaxCatalogEntries);
  tidy(catalog.anchors);
  store().put(kCatalogKey, pack(catalog, key()));
}

void LogWriter::State::write_floor(std::uint64_t version, const StreamId& stream) {
  LogFloor floor;
  floor.stream = stream;
  floor.version = version;
  store().put(kFloorKey, pack(floor, key()));
}

void LogWriter::State::update_catalog(const CatalogChange& change) {
  LogCatalog catalog = catalog_or_rebuilt();
  change(catalog);
  write_catalog(catalog);
}

void LogWriter::State::enter_commit(const LogCommit& commit) {
  try {
    update_catalog([&](LogCatalog& catalog) {
      catalog.head = std::max(catalog.head, commit.version);
      if (commit.kind == CommitKind::kGenesis) return;
      catalog.deltas.push_back({commit.version - 1, commit.version, commit.delta, commit.delta_bytes});
    });
  } catch (const Error&) {
    // Not an error for the caller, because the commit is durable. An outdated catalog only costs readers time.
  }
}

}  // namespace sparsecast
