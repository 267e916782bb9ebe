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

/// zstd level for rewriting a compressed delta, whose original level is unknown.
inline constexpr int kDerivedZstdLevel = 3;

bool is_context(const DeltaFile& delta);
bool is_compressed(const DeltaFile& delta);

/// Returns the digest of a version of the log.
using VersionDigest = std::function<StateDigest(std::uint64_t version)>;

/// Plain copies of deltas that have `context` positions in the log, for a followed checkpoint:
/// PATH.follow/plain/FROM-TO.scd. Their positions can be decoded without the weights. They are written while the base
/// weights are available, because the positions of a `context` delta cannot be decoded later. Compaction joins these
/// copies.
class PlainDeltas {
 public:
  PlainDeltas(FileSystem& fs, const std::string& checkpoint);

  /// Writes a `context` delta whose base has these tensors; does nothing for others. Throws Error{kIo | kWrongBase}.
  void keep(const DeltaFile& delta, const TensorReader& base, int threads);
  /// Moves a file with a plain delta over several versions into the directory.
  void adopt(const std::string& file, std::uint64_t from, std::uint64_t to);
  /// Returns the path of the kept delta, or nullopt if there is none or if its digests do not match those of
  /// `digest_of`.
  std::optional<std::string> find(std::uint64_t from, std::uint64_t to, const VersionDigest& digest_of) const;
  /// Removes every kept delta (from, to) for which done(from, to) returns true.
  void remove_if(const std::function<bool(std::uint64_t from, std::uint64_t to)>& done);

 private:
  std::string path(std::uint64_t from, std::uint64_t to) const;
  void make_directory();

  FileSystem& fs_;
  std::string directory_;
};

/// An open mirror: its weights, their version, and the plain deltas kept on the way there.
struct OpenMirror {
  Checkpoint checkpoint;
  std::uint64_t version = 0;
  PlainDeltas plain;
};

}  // namespace sparsecast
