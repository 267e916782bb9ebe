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

/// Compression level of zstd for a compressed delta that is written a second time. Its original level is not known.
inline constexpr int kDerivedZstdLevel = 3;

/// Returns whether the delta may have `context` positions, which can be decoded only with the weights of its base.
bool is_context(const DeltaFile& delta);
/// Returns whether the first frame of the delta is compressed.
bool is_compressed(const DeltaFile& delta);

/// Function that returns the digest of the weights at a version of the log.
using VersionDigest = std::function<StateDigest(std::uint64_t version)>;

/// Plain copies of the deltas that have `context` positions in the log, for a followed checkpoint:
/// PATH.follow/plain/FROM-TO.scd. The positions of a plain delta can be decoded without the weights. A copy is written
/// while the weights of the base are available, because the `context` delta cannot be decoded later. Compaction merges
/// these copies.
class PlainDeltas {
 public:
  PlainDeltas(FileSystem& fs, const std::string& checkpoint);

  /// Writes a plain copy of a `context` delta; does nothing for other deltas. `base` reads the tensors of the delta's
  /// base. `threads` is the number of threads to use. Throws Error{kIo | kWrongBase}.
  void keep(const DeltaFile& delta, const TensorReader& base, int threads);
  /// Copies `file`, a plain delta from version `from` to version `to`, into the directory of the kept deltas, durably.
  void adopt(const std::string& file, std::uint64_t from, std::uint64_t to);
  /// Returns the path of the kept delta from version `from` to version `to`. Returns nullopt if there is none, or if
  /// the delta's digests differ from those that `digest_of` returns for the two versions.
  std::optional<std::string> find(std::uint64_t from, std::uint64_t to, const VersionDigest& digest_of) const;
  /// Removes every kept delta for which done(from, to) returns true for its two versions, and every other file in the
  /// directory.
  void remove_if(const std::function<bool(std::uint64_t from, std::uint64_t to)>& done);

 private:
  std::string path(std::uint64_t from, std::uint64_t to) const;
  void make_directory();

  FileSystem& fs_;
  std::string directory_;
};

/// An open mirror of the log's weights: the checkpoint, its version, and the plain deltas that were kept on the way to
/// that version.
struct OpenMirror {
  Checkpoint checkpoint;
  std::uint64_t version = 0;
  PlainDeltas plain;
};

}  // namespace sparsecast
