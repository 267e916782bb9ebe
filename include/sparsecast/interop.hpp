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

/// What can be written.
enum class ForeignFormat {
  kTrl,             ///< `deltas/step_N.safetensors`
  kSlimeXor,        ///< `weight_vN/`
  kSlimeOverwrite,  ///< `weight_vN/`
  kPackedIndices,   ///< `weight_vN/`, also the two below.
  kPackedDeltas,
  kPackedDeltasZstd,
  kVerl,  ///< `flush_N_K.safetensors`: the tensors that verl's SGLang loader takes.
  kVllm,  ///< `update_N.safetensors`: the tensors that vLLM's sparse engine takes, and their update info.
};

/// "trl", "slime", ... and "slime-xor", "packed-deltas-zstd", ...
SPARSECAST_API std::string_view to_string(ForeignFamily family) noexcept;
SPARSECAST_API std::string_view to_string(ForeignFormat format) noexcept;
SPARSECAST_API std::optional<ForeignFamily> foreign_family_from_name(std::string_view name) noexcept;
SPARSECAST_API std::optional<ForeignFormat> foreign_format_from_name(std::string_view name) noexcept;

/// One version on disk: what is there, not yet what is in it.
struct ForeignStep {
  ForeignFamily family = ForeignFamily::kTrl;
  std::string path;                           ///< A file, or a version directory.
  bool full = false;                          ///< All tensors, not a difference.
  std::optional<std::uint64_t> version;       ///< As the files say, else from the name; empty: neither does.
  std::optional<std::uint64_t> base_version;  ///< As the files say.
};

/// The versions at `path`, in their order: the one that `path` is, or those in the directory. Without `family` it is
/// told by what is there. Of a TRL directory's `deltas/` and `anchors/`, an anchor counts only where the delta of its
/// version is missing. Throws Error{kUsage} when nothing is recognised, Error{kIncomplete} for a version directory that
/// its writer has not finished, Error{kCorrupt} for headers or indices that are none.
SPARSECAST_API std::vector<ForeignStep> find_foreign_steps(FileSystem& fs, const std::string& path,
                                                           std::optional<ForeignFamily> family = std::nullopt);

/// Reads `step` as a change of `base` and writes it as a delta to `sink` (header, table, frames, commit). `header` has
/// stream, versions and base digest (the digest of `base`; the caller sees to that). Everything in the files is checked
/// against the base's table before it is used: names, dtypes, shapes, counts, bounds, order, checksums, and how much a
/// zstd frame may hold. Intermediate data of more than 64 MiB go to a directory beside `scratch_beside`, which is
/// removed. Throws Error{kCorrupt | kTableMismatch | kIncomplete | kUnsupported | kIo}, with file, tensor and offset.
SPARSECAST_API CommitRecord read_foreign_step(FileSystem& fs, const ForeignStep& step, const Checkpoint& base,
                                              DeltaHeader header, const EncodeOptions& options,
                                              const std::string& scratch_beside, const RecordSink& sink);

struct ForeignWriteOptions {
  ForeignFormat format = ForeignFormat::kTrl;
  std::string checksum = "xxh3-128";  ///< Slime's: "xxh3-128" or "adler32".
  /// Most bytes of one file's payload, but one tensor at least (packed and verl: positions and values of a flush;
  /// slime: frames of a file).
  std::uint64_t bucket_bytes = std::uint64_t{512} << 20;
};

/// Writes what `delta` does to `base` in the layout of another system, under its own names in `directory` (made when it
/// is missing), and returns the paths, each of which appears whole or not at all. `base` has the delta's base digest
/// (the caller sees to that). Throws Error{kUsage} when there is something under such a path already,
/// Error{kUnsupported} for what the layout cannot say, Error{kDigestMismatch} when the delta does not lead to its
/// digest.
SPARSECAST_API std::vector<std::string> write_foreign_step(FileSystem& fs, const DeltaFile& delta,
                                                           const Checkpoint& base, const std::string& directory,
                                                           const ForeignWriteOptions& options);

/// Writes the state of `checkpoint` as a full version: TRL `anchors/step_N.safetensors`, slime `weight_vN/` (other
/// formats have none: Error{kUsage}). Returns its path; it must not exist.
SPARSECAST_API std::string write_foreign_anchor(FileSystem& fs, const Checkpoint& checkpoint, std::uint64_t version,
                                                const std::string& directory, ForeignFormat format);

}  // namespace sparsecast
