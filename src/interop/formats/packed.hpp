// SPDX-License-Identifier: Apache-2.0
#pragma once

// slime's packed form on a shared disk (2026-05 to 2026-07; miles): a directory per version, `weight_v{version:06d}`,
// with rank{rank:04d}_flush{flush:06d}.safetensors and an empty file DONE, written last. A file is a safetensors file
// (with "deltas_zstd", compressed as a zstd frame) of `__positions__` (U8) and `__values__`. The values have the dtype
// of the parameters; if dtypes are mixed, all are converted to the widest. The metadata is
//
//     encoding                         "indices", "deltas" or "deltas_zstd"
//     params                           JSON list of {name, dtype, shape, pos_start, pos_end, pos_width, val_start,
//                                      val_end}
//     prev_version, current_version    the first delta follows "default"
//     checksum                         of later writers: decimal; see PackedFlush::checksum

#include <optional>
#include <string>

#include "interop/formats/patch_store.hpp"
#include "sparsecast/interop.hpp"

namespace sparsecast::packed {

inline constexpr const char* kDoneName = "DONE";

/// Returns whether `name`, the name of a file in a version directory, is the name of a flush file of this format.
bool is_flush_name(const std::string& name);

/// Reads all files of a version directory and adds their changes to `out`. `base` is the checkpoint to which the
/// changes apply. Throws Error{kIncomplete} if DONE is missing, and other codes for files that cannot be read or are
/// not valid.
void read_directory(FileSystem& fs, const std::string& directory, const Checkpoint& base, PatchStore& out);

/// Calls `sink` with the changes that one file contains, as patches of tensors of `table`. `bytes` is the content of
/// the file; errors name `name`.
void read_flush(ConstBytes bytes, const std::string& name, const TensorTable& table, const PatchSink& sink);

/// Writes `patches`, the changes of the version in `header`, as a version directory below `parent`. `table` is the
/// table of the tensors. Returns the path of the directory.
std::string write_directory(FileSystem& fs, const DeltaHeader& header, const TensorPatches& patches,
                            const TensorTable& table, const std::string& parent, const ForeignWriteOptions& options);

/// Writes `patches`, the changes of the version in `header`, as files of verl in `directory`. `table` is the table of
/// the tensors. Returns the paths of the files.
std::vector<std::string> write_verl(FileSystem& fs, const DeltaHeader& header, const TensorPatches& patches,
                                    const TensorTable& table, const std::string& directory,
                                    const ForeignWriteOptions& options);

}  // namespace sparsecast::packed
