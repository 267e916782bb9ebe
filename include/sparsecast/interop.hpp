// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sparsecast/delta.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/io.hpp"
#include "sparsecast/safetensors.hpp"

namespace sparsecast {

/// Families of files in which other systems keep the versions of a model (docs/interop.md).
enum class ForeignFamily {
  kTrl,     ///< Sparse safetensors steps, and anchors (full checkpoints in one file).
  kSlime,   ///< Version directories with zstd frames; also those that hold a full checkpoint.
  kPacked,  ///< Version directories of `__positions__` and `__values__` with a manifest.
};

/// Formats that can be written.
enum class ForeignFormat {
  kTrl,             ///< `deltas/step_N.safetensors`
  kSlimeXor,        ///< `weight_vN/`
  kSlimeOverwrite,  ///< `weight_vN/`
  kPackedIndices,   ///< `weight_vN/`, as for the two formats below.
  kPackedDeltas,
  kPackedDeltasZstd,
  kVerl,  ///< `flush_N_K.safetensors`: the tensors that verl's SGLang loader takes.
  kVllm,  ///< `update_N.safetensors`: the tensors that vLLM's sparse engine takes, and their update info.
};

/// Returns the name of a family ("trl", "slime", ...) or a format ("slime-xor", "packed-deltas-zstd", ...).
SPARSECAST_API std::string_view to_string(ForeignFamily family) noexcept;
SPARSECAST_API std::string_view to_string(ForeignFormat format) noexcept;
SPARSECAST_API std::optional<ForeignFamily> foreign_family_from_name(std::string_view name) noexcept;
SPARSECAST_API std::optional<ForeignFormat> foreign_format_from_name(std::string_view name) noexcept;

/// One version found on disk, whose content has not been read yet.
struct ForeignStep {
  ForeignFamily family = ForeignFamily::kTrl;
  std::string path;                           ///< A file, or a version directory.
  bool full = false;                          ///< True when the step holds all tensors instead of a difference.
  std::optional<std::uint64_t> version;       ///< Version from the files, else from the name; nullopt without either.
  std::optional<std::uint64_t> base_version;  ///< Base version from the files.
};

/// Returns the versions at `path` in ascending order: the version that `path` itself is, or the versions in that
/// directory. Without `family`, the family is recognised from the files. In a TRL directory with `deltas/` and
/// `anchors/`, an anchor is used only where the delta of its version is missing. Throws Error{kUsage} when nothing is
/// recognised, Error{kIncomplete} for a version directory that its writer has not finished, Error{kCorrupt} for
/// malformed headers or indices.
SPARSECAST_API std::vector<ForeignStep> find_foreign_steps(FileSystem& fs, const std::string& path,
                                                           std::optional<ForeignFamily> family = std::nullopt);

/// Reads `step` as a change of `base` and writes it as a delta to `sink` (header, table, frames, commit). `header` has
/// stream, versions and base digest, which the caller guarantees to be the digest of `base`. Everything in the files is
/// checked against the base's table before it is used: names, dtypes, shapes, counts, bounds, order, checksums, and the
/// size of each zstd frame's content. Intermediate data of more than 64 MiB go to a temporary directory next to
/// `scratch_beside`, which is removed at the end. Throws Error{kCorrupt | kTableMismatch | kIncomplete | kUnsupported |
/// kIo}, with file, tensor and offset.
SPARSECAST_API CommitRecord read_foreign_step(FileSystem& fs, const ForeignStep& step, const Checkpoint& base,
                                              DeltaHeader header, const EncodeOptions& options,
                                              const std::string& scratch_beside, const RecordSink& sink);

struct ForeignWriteOptions {
  ForeignFormat format = ForeignFormat::kTrl;
  std::string checksum = "xxh3-128";  ///< Checksum for slime: "xxh3-128" or "adler32".
  /// Maximum bytes of one file's payload, which has at least one tensor (packed and verl: positions and values of a
  /// flush; slime: frames of a file).
  std::uint64_t bucket_bytes = std::uint64_t{512} << 20;
};

/// Writes the changes that `delta` makes to `base` in another system's format, under that system's file names in
/// `directory` (created when missing), and returns the paths. Each path appears whole or not at all. The caller
/// guarantees that `base` has the delta's base digest. Throws Error{kUsage} when such a path exists already,
/// Error{kUnsupported} for changes that the format cannot represent, Error{kDigestMismatch} when the result does not
/// have the digest that the delta promises.
SPARSECAST_API std::vector<std::string> write_foreign_step(FileSystem& fs, const DeltaFile& delta,
                                                           const Checkpoint& base, const std::string& directory,
                                                           const ForeignWriteOptions& options);

/// Writes the state of `checkpoint` as a full version: TRL `anchors/step_N.safetensors`, slime `weight_vN/` (other
/// formats have none: Error{kUsage}). Returns its path, which must not exist before.
SPARSECAST_API std::string write_foreign_anchor(FileSystem& fs, const Checkpoint& checkpoint, std::uint64_t version,
                                                const std::string& directory, ForeignFormat format);

}  // namespace sparsecast
