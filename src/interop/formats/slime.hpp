// SPDX-License-Identifier: Apache-2.0
#pragma once

// slime and miles, deltas on a shared disk: a directory a version, `weight_v{version:06d}`, with model-*.safetensors
// and model.safetensors.index.json, whose metadata is
//
//     version, base_version            six digits or more
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

/// Receives equally long windows of a tensor: its bytes before and after a patch.
using WindowSink = std::function<void(ConstBytes before, ConstBytes after)>;

/// Walks over the whole tensor of `base` in windows of at most 1 MiB, and releases the memory of windows that it has
/// passed.
void for_each_window(const Checkpoint& base, const TensorPatch& patch, const WindowSink& sink);

inline constexpr const char* kIndexName = "model.safetensors.index.json";

/// Content of a version directory's index file.
struct Index {
  bool delta = false;
  std::optional<std::uint64_t> version;
  std::optional<std::uint64_t> base_version;
  std::string encoding;
  std::string checksum;
  std::vector<std::string> tensors;  ///< Names of the tensors in the files by the index, sorted.
};

/// Parses the text of an index file. Throws Error{kCorrupt | kUnsupported} without context.
Index parse_index(const std::string& text);
/// Reads the index of a directory. A directory without an index file is a full checkpoint. The context of errors names
/// it.
Index read_index(FileSystem& fs, const std::string& directory);

/// Reads the changes of a delta directory into `out`. Verifies the checksum of each tensor.
void read_delta(FileSystem& fs, const std::string& directory, const Checkpoint& base, PatchStore& out);

/// Decodes the change in one frame of a tensor, without checking its checksum. Throws Error{kCorrupt} without context.
void decode_tensor(ConstBytes frame, const std::string& encoding, std::size_t tensor, const Checkpoint& base,
                   const PatchSink& sink);

/// Writes a version directory below `parent` and returns its path.
std::string write_delta(FileSystem& fs, const DeltaHeader& header, const TensorPatches& patches, const Checkpoint& base,
                        const std::string& parent, const ForeignWriteOptions& options, WorkDirectory& scratch);

/// Returns "weight_v000012" for version 12.
std::string version_name(std::uint64_t version);
/// Returns the version of a name that version_name() has made, or nothing for other names.
std::optional<std::uint64_t> version_of_name(const std::string& name);

}  // namespace sparsecast::slime
