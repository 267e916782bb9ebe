// SPDX-License-Identifier: Apache-2.0
#pragma once

// Files of NAME.indices (I32) and NAME.values.
//
// TRL: `deltas/step_{version:06d}.safetensors` with the metadata sparse=True, model_version, sparsity (the fraction of
// unchanged elements) and changed_params (JSON list of names). At intervals, also
// `anchors/step_{version:06d}.safetensors` with all tensors and sparse=False.
//
// vLLM itself has no files. Here, `update_{version:06d}.safetensors` holds the tensors that its sparse engine
// broadcasts, and the metadata "update_info" holds the update info.

#include <map>
#include <string>

#include "sparsecast/interop.hpp"
#include "sparsecast/tensor_patch.hpp"

namespace sparsecast {

/// Returns the name of TRL's file for a version: "step_000012.safetensors" for version 12.
std::string trl_step_name(std::uint64_t version);

/// Writes `patches`, the changes of the version in `header`, as one file of TRL in `directory`/deltas. `table` is the
/// table of the tensors. Returns the path of the file.
std::string write_trl_step(FileSystem& fs, const DeltaHeader& header, const TensorPatches& patches,
                           const TensorTable& table, const std::string& directory);
/// Writes `patches`, the changes of the version in `header`, as one file, update_NNNNNN.safetensors, in `directory`.
/// `table` is the table of the tensors. Returns the path of the file.
std::string write_vllm_update(FileSystem& fs, const DeltaHeader& header, const TensorPatches& patches,
                              const TensorTable& table, const std::string& directory);
/// Writes a whole checkpoint of version `version` as one file of TRL in `directory`/anchors. Returns the path of the
/// file.
std::string write_trl_anchor(FileSystem& fs, const Checkpoint& checkpoint, std::uint64_t version,
                             const std::string& directory);
/// Writes all tensors of a checkpoint, and the metadata `metadata`, as one safetensors file at `path`.
void write_all_tensors(FileSystem& fs, const Checkpoint& checkpoint, const std::string& path,
                       const std::map<std::string, std::string>& metadata);

}  // namespace sparsecast
