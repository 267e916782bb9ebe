// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "sparsecast/delta.hpp"
#include "sparsecast/io.hpp"
#include "sparsecast/safetensors.hpp"

namespace sparsecast {

/// Level that takes the place of an unknown one when deltas that were compressed are written anew.
inline constexpr int kDerivedZstdLevel = 3;

bool is_context(const DeltaFile& delta);
bool is_compressed(const DeltaFile& delta);

/// Returns the digest of a version of the log.
using VersionDigest = std::function<StateDigest(std::uint64_t version)>;

/// Deltas of a followed checkpoint that have `context` positions in the log, with positions that stand by themselves:
/// PATH.follow/plain/FROM-TO.scd. They are written while the weights before them are at hand, and are what a compaction
/// joins, because the places of a `context` delta cannot be found again later.
class PlainDeltas {
 public:
  PlainDeltas(FileSystem& fs, const std::string& checkpoint);

  /// Writes a `context` delta whose base has these tensors; does nothing for others. Throws Error{kIo | kWrongBase}.
  void keep(const DeltaFile& delta, const TensorReader& base, int threads);
  /// Puts a file with a delta over several versions, which stands by itself, among them.
  void adopt(const std::string& file, std::uint64_t from, std::uint64_t to);
  /// Returns the delta's path; nullopt when there is none, or one of another history than that of `digest_of`.
  std::optional<std::string> find(std::uint64_t from, std::uint64_t to, const VersionDigest& digest_of) const;
  /// Removes every kept delta (from, to) for which done(from, to) returns true.
  void remove_if(const std::function<bool(std::uint64_t from, std::uint64_t to)>& done);

 private:
  std::string path(std::uint64_t from, std::uint64_t to) const;
  void make_directory();

  FileSystem& fs_;
  std::string directory_;
};

/// A mirror that is open: its weights, their version, and what was kept while it went there.
struct OpenMirror {
  Checkpoint checkpoint;
  std::uint64_t version = 0;
  PlainDeltas plain;
};

}  // namespace sparsecast
