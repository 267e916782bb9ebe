// SPDX-License-Identifier: Apache-2.0
#pragma once

// slime's packed form on a shared disk (2026-05 to 2026-07; miles): a directory a version, `weight_v{version:06d}`,
// with rank{rank:04d}_flush{flush:06d}.safetensors and an empty file DONE, written last. A file is, with "deltas_zstd"
// as a zstd frame, a safetensors file of `__positions__` (U8) and `__values__` (the dtype of the parameters; of mixed
// ones the widest, to which the others were converted), with the metadata
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
#include "sparsecast/patch_payloads.hpp"

namespace sparsecast::packed {

inline constexpr const char* kDoneName = "DONE";

/// Returns whether a directory entry is a file of this format.
bool is_flush_name(const std::string& name);

/// Takes the changes of a version directory to `out`. Throws Error; Error{kIncomplete} without DONE.
void read_directory(FileSystem& fs, const std::string& directory, const Checkpoint& base, PatchStore& out);

/// Takes one file's changes to `sink`; `bytes` is the file, `name` goes into errors.
void read_flush(ConstBytes bytes, const std::string& name, const TensorTable& table, const PatchSink& sink);

/// Returns the directory.
std::string write_directory(FileSystem& fs, const DeltaHeader& header, const TensorPatches& patches,
                            const TensorTable& table, const std::string& parent, const ForeignWriteOptions& options);

/// Returns the files.
std::vector<std::string> write_verl(FileSystem& fs, const DeltaHeader& header, const TensorPatches& patches,
                                    const TensorTable& table, const std::string& directory,
                                    const ForeignWriteOptions& options);

}  // namespace sparsecast::packed
