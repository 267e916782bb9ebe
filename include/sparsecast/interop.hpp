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
#include "sparsecast/tensor_patch.hpp"

// Payloads for receivers of other systems, made in memory from tensor patches (tensor_patch.hpp), so that a publisher
// of deltas can feed an unmodified SGLang (through slime's, miles' or verl's loader) or vLLM. Layouts: docs/interop.md.

namespace sparsecast {

/// Encoding of positions in a packed flush.
enum class PackedEncoding {
  kIndices,  ///< The encoding "indices": int32 element indices.
  /// The encoding "deltas": gaps idx[k] - idx[k-1] - 1, where idx[-1] = -1. A parameter has them as uint16 if all of
  /// them fit, otherwise as uint32.
  kDeltas,
};

/// Part of a flush that belongs to one parameter: a range of bytes in `positions`, and of elements in `values`.
struct PackedParam {
  std::size_t tensor = 0;
  std::uint64_t positions_begin = 0;
  std::uint64_t positions_end = 0;
  std::uint32_t width = 4;  ///< Bytes of each position: 2 or 4.
  std::uint64_t values_begin = 0;
  std::uint64_t values_end = 0;
};

/// One payload of slime's packed form (2026-05 to 2026-07; also miles, and SGLang's loader of that time) and of verl:
/// the bytes of `__positions__`, the bytes of `__values__`, which have one dtype, and the manifest.
struct SPARSECAST_API PackedFlush {
  PackedEncoding encoding = PackedEncoding::kIndices;
  DType dtype = DType::kBF16;
  Bytes positions;
  Bytes values;
  std::vector<PackedParam> params;

  /// Returns the manifest as JSON: the list of DeltaParam objects, one per parameter.
  std::string params_json(const TensorTable& table) const;
  /// Returns `hash(positions) ^ (hash(values) << 1)`, where hash is torch.hash_tensor, in decimal (up to 65 bits).
  /// Throws Error{kUnsupported} for the 8-bit floating dtypes, for which PyTorch has no such hash.
  std::string checksum() const;
  /// Returns verl's `__delta_spec__`: encoding, params and checksum. Throws Error{kUnsupported} unless the encoding is
  /// kIndices.
  std::string verl_spec(const TensorTable& table) const;
};

/// Collects patches into flushes. A flush has one dtype and at most `flush_bytes` of positions and values, unless a
/// single patch is larger. At most one unfinished flush per dtype is kept in memory.
class SPARSECAST_API PackedFlusher {
 public:
  using Sink = std::function<void(PackedFlush&&)>;
  /// Makes a flusher that passes a PackedFlush to `sink` when the next patch has no room in it (`flush_bytes`), and the
  /// rest at finish(). `table` must outlive the flusher.
  PackedFlusher(const TensorTable& table, PackedEncoding encoding, std::uint64_t flush_bytes, Sink sink);

  /// Adds a patch to the flush of its dtype, after passing that flush to the sink if it has no room. Throws
  /// Error{kUnsupported} for a tensor of numbers of 4 or 6 bits (is_pair, is_fp6), which the format cannot name.
  void add(const TensorPatch& patch);
  /// Passes all unfinished flushes to the sink. add() must not be called afterwards.
  void finish();

 private:
  PackedFlush& open_flush(DType dtype, std::uint64_t more_bytes);

  const TensorTable& table_;
  PackedEncoding encoding_;
  std::uint64_t flush_bytes_;
  Sink sink_;
  std::vector<PackedFlush> open_;
};

/// Builds the update info of vLLM's `sparse_nccl` engine. For each patch, in the same order, the sender broadcasts the
/// indices, then the values.
class SPARSECAST_API VllmUpdate {
 public:
  /// Makes an update without patches. `table` must outlive the object.
  explicit VllmUpdate(const TensorTable& table) : table_(table) {}
  /// Adds a patch. Throws Error{kUnsupported} for patches that the receiver would reject midway: a tensor that is not
  /// floating, or a NaN.
  void add(const TensorPatch& patch);
  bool empty() const noexcept { return tensors_.empty(); }  ///< Returns true when there is nothing to send.
  /// Returns the update info as JSON: {"names": [...], "dtype_names": [...], "shapes": [[...]], "num_updates_list":
  /// [...]}.
  std::string json() const;

 private:
  const TensorTable& table_;
  std::vector<std::size_t> tensors_;
  std::vector<std::uint64_t> counts_;
};

/// Families of files in which other systems keep the versions of a model (docs/interop.md).
enum class ForeignFamily {
  kTrl,     ///< Sparse safetensors steps, and anchors (full checkpoints in one file).
  kSlime,   ///< Version directories with zstd frames, which hold differences or a full checkpoint.
  kPacked,  ///< Version directories of `__positions__` and `__values__` with a manifest.
};

/// Formats in which a version N can be written. The comments give the names of the files or directories.
enum class ForeignFormat {
  kTrl,             ///< File `deltas/step_N.safetensors`: indices and new values.
  kSlimeXor,        ///< Directory `weight_vN/`: old bits ^ new bits.
  kSlimeOverwrite,  ///< Directory `weight_vN/`: new bits.
  kPackedIndices,   ///< Directory `weight_vN/`, as for the next two formats; positions as PackedEncoding::kIndices.
  kPackedDeltas,
  kPackedDeltasZstd,
  kVerl,  ///< Files `flush_N_K.safetensors`: the tensors that verl's SGLang loader takes.
  kVllm,  ///< File `update_N.safetensors`: the tensors that vLLM's sparse engine takes, and their update info.
};

/// Returns the name of a family: "trl", "slime", ...
SPARSECAST_API std::string_view to_string(ForeignFamily family) noexcept;
/// Returns the name of a format: "slime-xor", "packed-deltas-zstd", ...
SPARSECAST_API std::string_view to_string(ForeignFormat format) noexcept;
/// Returns the family of this name; nullopt for any other name.
SPARSECAST_API std::optional<ForeignFamily> foreign_family_from_name(std::string_view name) noexcept;
/// Returns the format of this name; nullopt for any other name.
SPARSECAST_API std::optional<ForeignFormat> foreign_format_from_name(std::string_view name) noexcept;

/// One version found on disk, whose content has not been read yet.
struct ForeignStep {
  ForeignFamily family = ForeignFamily::kTrl;
  std::string path;   ///< Path of the version's file or directory.
  bool full = false;  ///< True when the step holds all tensors instead of a difference.
  /// Version number in the files, else in the path; nullopt when neither has one.
  std::optional<std::uint64_t> version;
  std::optional<std::uint64_t> base_version;  ///< Number of the base version in the files; nullopt when they have none.
  std::string label;       ///< Name of the version in the index of slime or ModelExpress; empty without one.
  std::string base_label;  ///< Name of the base in that index.
};

/// Returns the versions at `path` in ascending order. `path` is one version, or a directory of versions. Without
/// `family`, the family is recognised from the files. In a TRL directory with `deltas/` and `anchors/`, an anchor is
/// used only where the delta of its version is missing. Throws Error{kUsage} when nothing is recognised,
/// Error{kIncomplete} for a version directory that its writer has not finished, Error{kCorrupt} for malformed headers
/// or indices.
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
  std::string checksum = "xxh3-128";  ///< Algorithm of the checksums in slime's files: "xxh3-128" or "adler32".
  /// Maximum number of payload bytes in one file: positions and values (packed and verl), or zstd frames (slime). A
  /// file with only one tensor may have more.
  std::uint64_t bucket_bytes = std::uint64_t{512} << 20;
};

/// Writes the changes that `delta` makes to `base` in another system's format, under that system's file names in
/// `directory` (created when missing), and returns the paths. Each file or directory appears whole or not at all. The
/// caller guarantees that `base` has the delta's base digest. Throws Error{kUsage} when such a path exists already,
/// Error{kUnsupported} for changes that the format cannot represent, Error{kDigestMismatch} when the result does not
/// have the digest that the delta promises.
SPARSECAST_API std::vector<std::string> write_foreign_step(FileSystem& fs, const DeltaFile& delta,
                                                           const Checkpoint& base, const std::string& directory,
                                                           const ForeignWriteOptions& options);

/// Writes the state of `checkpoint` as a full version: TRL `anchors/step_N.safetensors`, slime `weight_vN/` (other
/// formats have no full versions: Error{kUsage}). Returns the path of the version, which must not exist before.
SPARSECAST_API std::string write_foreign_anchor(FileSystem& fs, const Checkpoint& checkpoint, std::uint64_t version,
                                                const std::string& directory, ForeignFormat format);

}  // namespace sparsecast
