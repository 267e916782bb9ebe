// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "sparsecast/delta_log.hpp"
#include "sparsecast/log_follower.hpp"

namespace sparsecast {

/// The paths through a log that a follower knows. They consist of the deltas and anchors in the catalog, and of the
/// single deltas of the commits that the follower has read. It takes the memory of the catalog, and about 100 bytes for
/// each commit that was read.
class LogMap {
 public:
  /// Largest number of commits that one search for a path or a version reads, if there is an anchor that could be used
  /// instead.
  static constexpr std::size_t kMostCommits = 256;

  LogMap(LogReader& reader, bool merged, bool every_version, std::uint64_t object_cost_bytes)
      : reader_(reader), merged_(merged), every_version_(every_version), object_cost_bytes_(object_cost_bytes) {}

  /// Remembers the digest of a commit, and its single delta as a possible part of paths.
  void add(const LogCommit& commit);
  /// Reads the catalog. Does nothing if the catalog has been read before, unless `again` is true.
  void load_catalog(bool again = false);
  /// Makes path() use no deltas of the catalog from now on, only the catalog's anchors and the deltas that commits
  /// name.
  void plan_by_commits() { by_commits_ = true; }
  /// Excludes deltas and anchors that start at versions below `floor`.
  void set_floor(std::uint64_t floor) { floor_ = floor; }
  std::uint64_t floor() const noexcept { return floor_; }
  /// Identity of an object that a catalog or a commit names: its hash and its size in bytes.
  struct ObjectId {
    ContentHash hash;
    std::uint64_t bytes = 0;
    friend auto operator<=>(const ObjectId&, const ObjectId&) = default;
  };
  /// Excludes an object that could not be used from all paths that path() returns from now on.
  void avoid(const ObjectId& object) { avoided_.insert(object); }

  /// Returns the digest of the weights at a version, or nullopt if the commit of that version has not been read.
  std::optional<StateDigest> digest_of(std::uint64_t version) const;
  /// Returns the digest of the weights at a version, and reads the commit of that version if it has not been read.
  /// Throws Error{kGone} if there is no such commit.
  StateDigest require_digest(std::uint64_t version);

  /// Returns the cheapest known path to version `to`, or nullopt if there is none. The path starts at version `from`,
  /// or with an anchor that is not older than `from`. An anchor is used if it is cheaper, unless every version is
  /// wanted, or if no path starts at `from`. Reads commits first if the catalog's deltas do not make up a path.
  std::optional<CatchUpPath> path(std::optional<std::uint64_t> from, std::uint64_t to);

  /// Returns the version whose digest is `digest`, or nullopt if none is found. Searches `head`, then upwards from
  /// `hint` (up to kMostCommits versions), then 0, then downwards from `head` (up to kMostCommits versions, or all if
  /// there is no anchor). If `after` is given, searches only versions after it, because an earlier search has covered
  /// all others.
  std::optional<std::uint64_t> find(const StateDigest& digest, std::uint64_t head, std::optional<std::uint64_t> hint,
                                    std::optional<std::uint64_t> after);

 private:
  struct Known {
    StateDigest digest;
    std::optional<DeltaRef> edge;
  };

  const Known* read(std::uint64_t version);
  bool usable(const DeltaRef& edge) const;
  std::vector<DeltaRef> edges() const;
  std::vector<AnchorRef> anchors(std::uint64_t least, std::uint64_t most) const;
  void read_missing(std::optional<std::uint64_t> from, std::uint64_t to, const std::vector<AnchorRef>& anchors);

  LogReader& reader_;
  const bool merged_;
  const bool every_version_;
  const std::uint64_t object_cost_bytes_;
  LogCatalog catalog_;
  bool has_catalog_ = false;
  bool by_commits_ = false;
  std::map<std::uint64_t, Known> commits_;
  std::set<ObjectId> avoided_;
  std::uint64_t floor_ = 0;
};

}  // namespace sparsecast
