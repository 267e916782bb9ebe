// SPDX-License-Identifier: Apache-2.0
#pragma once

// Deltas on a shared disk or in a bucket, as slime, miles and ModelExpress publish them: a directory per version,
// `weight_v{version:06d}` or ModelExpress' `v{version}`, with model-*.safetensors and model.safetensors.index.json,
// whose metadata is
//
//     version, base_version            six digits or more; any text from ModelExpress
//     delta_encoding                   "xor" or "overwrite"; without it the directory is a full checkpoint
//     compression_format               "zstd"
//     checksum_format                  "xxh3-128", "blake3" or "adler32"
//
// Each tensor of the safetensors files is one changed parameter, stored as a flat U8 tensor that is a zstd frame of
//
//     xor          the bytes of the whole tensor, new ^ old
//     overwrite    u32 count, count times u32 position, count bytes: positions are bytes of the tensor, not elements
//
// The metadata of the safetensors file maps each tensor's name to the hexadecimal checksum of the whole tensor's new
// bytes.

#include <functional>
#include <optional>
#include <string>

#include "interop/formats/patch_store.hpp"
#include "sparsecast/interop.hpp"
#include "sparsecast/safetensors.hpp"
#include "sparsecast/tensor_patch.hpp"

namespace sparsecast::slime {

/// Function that receives one window of a tensor: `before` are the bytes of the window in the base, `after` its bytes
/// with a patch applied. Both have the same size.
using WindowSink = std::function<void(ConstBytes before, ConstBytes after)>;

/// Calls `sink` with the whole tensor of `base` that `patch` changes, in windows of at most 1 MiB. Releases the memory
/// of each window after the call.
void for_each_window(const Checkpoint& base, const TensorPatch& patch, const WindowSink& sink);

inline constexpr const char* kIndexName = "model.safetensors.index.json";

/// The content of the index file of a version directory. For a full checkpoint, only `delta` is set.
struct Index {
  /// True if the directory holds a delta, false if it holds a full checkpoint.
  bool delta = false;
  std::string version;       ///< Name of the version; six digits or more from slime.
  std::string base_version;  ///< Name of the base.
  std::string encoding;
  std::string checksum;
  std::vector<std::string> tensors;  ///< Names of the tensors that the index lists, sorted.
};

/// Parses the text of an index file. Throws Error{kCorrupt | kUnsupported} without context.
Index parse_index(const std::string& text);
/// Returns the content of the index file of a directory. A directory without an index file counts as a full checkpoint.
/// The context of errors is the path of the index file.
Index read_index(FileSystem& fs, const std::string& directory);

/// Reads the files of a delta directory and adds their changes to `out`. `base` is the checkpoint to which the changes
/// apply. Verifies the checksum of each tensor: throws Error{kDigestMismatch} if it differs, and {kIncomplete} if the
/// files do not hold the tensors that the index names.
void read_delta(FileSystem& fs, const std::string& directory, const Checkpoint& base, PatchStore& out);

/// Calls `sink` with the change of tensor number `tensor` that one zstd frame contains, in the encoding "xor" or
/// "overwrite". Does not verify the checksum of the tensor. Throws Error{kCorrupt} without context.
void decode_tensor(ConstBytes frame, const std::string& encoding, std::size_t tensor, const Checkpoint& base,
                   const PatchSink& sink);

/// Writes `patches`, the changes of the version in `header`, as a version directory below `parent`. `base` is the
/// checkpoint to which the changes apply. Returns the path of the directory.
std::string write_delta(FileSystem& fs, const DeltaHeader& header, const TensorPatches& patches, const Checkpoint& base,
                        const std::string& parent, const ForeignWriteOptions& options, WorkDirectory& scratch);

/// Writes all tensors of `checkpoint` as the directory of version number `version` below `parent`: one safetensors file
/// and an index without `delta_encoding`, for which ModelExpress and Stitch ask. Returns the path of the directory.
std::string write_full(FileSystem& fs, const Checkpoint& checkpoint, std::uint64_t version, const std::string& parent);

/// Returns the name of the directory of a version: "weight_v000012" for version 12.
std::string version_name(std::uint64_t version);
/// Returns the version in the name of a version directory; nullopt for a name that version_name() does not return.
std::optional<std::uint64_t> version_of_name(const std::string& name);

}  // namespace sparsecast::slime
