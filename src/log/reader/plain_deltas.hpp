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

/// zstd level with which a compressed delta is written again, because its original level is unknown.
inline constexpr int kDerivedZstdLevel = 3;

/// Returns whether the delta may have `context` positions, so that decoding it needs its base.
bool is_context(const DeltaFile& delta);
/// Returns whether the first frame of the delta is compressed.
bool is_compressed(const DeltaFile& delta);

/// Function that returns the digest of a version of the log.
using VersionDigest = std::function<StateDigest(std::uint64_t version)>;

/// Plain copies of deltas that have `context` positions in the log, for a followed checkpoint:
/// PATH.follow/plain/FROM-TO.scd. Their positions can be decoded without the weights. They are written while the base
/// weights are available, because the positions of a `context` delta cannot be decoded later. Compaction joins these
/// copies.
class PlainDeltas {
 public:
  PlainDeltas(FileSystem& fs, const std::string& checkpoint);

  /// Writes a plain copy of a `context` delta; `base` reads the tensors of its base. Does nothing for other deltas.
  /// `threads` is the number of threads. Throws Error{kIo | kWrongBase}.
  void keep(const DeltaFile& delta, const TensorReader& base, int threads);
  /// Copies `file`, a plain delta from version `from` to version `to`, into the directory, durably.
  void adopt(const std::string& file, std::uint64_t from, std::uint64_t to);
  /// Returns the path of the kept delta from version `from` to version `to`. Returns nullopt if there is none, or if
  /// its digests are not those that `digest_of` returns for these versions.
  std::optional<std::string> find(std::uint64_t from, std::uint64_t to, const VersionDigest& digest_of) const;
  /// Removes every kept delta for whose versions done(from, to) returns true, and every other file in the directory.
  void remove_if(const std::function<bool(std::uint64_t from, std::uint64_t to)>& done);

 private:
  std::string path(std::uint64_t from, std::uint64_t to) const;
  void make_directory();

  FileSystem& fs_;
  std::string directory_;
};

/// An open mirror: its weights, their version, and the plain deltas that were kept on the way to that version.
struct OpenMirror {
  Checkpoint checkpoint;
  std::uint64_t version = 0;
  PlainDeltas plain;
};

}  // namespace sparsecast
