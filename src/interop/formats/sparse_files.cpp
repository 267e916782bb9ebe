// SPDX-License-Identifier: Apache-2.0
#include "interop/formats/sparse_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "interop/formats/directory_output.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/patch_payloads.hpp"

namespace sparsecast {
namespace {

/// Indices before values, wide values before narrow ones: every tensor is aligned, which PyTorch's readers want.
void write_pairs(FileSystem& fs, const std::string& path, const std::vector<TensorPatch>& patches,
                 const TensorTable& table, const std::map<std::string, std::string>& metadata) {
  require_absent(fs, path);
  std::vector<TensorSpec> specs;
  std::vector<ConstBytes> contents;
  for (const TensorPatch& patch : patches) {
    specs.push_back({table[patch.tensor].name + ".indices", DType::kI32, {patch.count}});
    contents.push_back(patch.indices);
  }
  const auto add_values = [&](std::size_t size) {
    for (const TensorPatch& patch : patches) {
      if (element_size(table[patch.tensor].dtype) != size) continue;
      const TensorSpec& spec = table[patch.tensor];
      // The bytes of fp6 that changed are no numbers.
      specs.push_back({spec.name + ".values", is_fp6(spec.dtype) ? DType::kU8 : spec.dtype, {patch.count}});
      contents.push_back(patch.values);
    }
  };
  // After an odd number of I32 entries, what has 8 bytes is not aligned: then it comes first.
  for (const std::size_t size : {8, 4, 2, 1}) {
    add_values(size);
    if (size != 8) continue;
    std::rotate(specs.begin(), specs.begin() + static_cast<std::ptrdiff_t>(patches.size()), specs.end());
    std::rotate(contents.begin(), contents.begin() + static_cast<std::ptrdiff_t>(patches.size()), contents.end());
  }
  SafetensorsWriter writer(fs, path, specs, metadata);
  for (const ConstBytes bytes : contents) writer.append(bytes);
  writer.finish();
}

}  // namespace

std::string trl_step_name(std::uint64_t version) { return fmt::format("step_{:06d}.safetensors", version); }

std::string write_trl_step(FileSystem& fs, const DeltaHeader& header, const std::vector<TensorPatch>& patches,
                           const TensorTable& table, const std::string& directory) {
  make_output_directory(fs, directory);
  make_output_directory(fs, directory + "/deltas");
  nlohmann::ordered_json names = nlohmann::ordered_json::array();
  std::uint64_t changed = 0;
  for (const TensorPatch& patch : patches) {
    names.push_back(table[patch.tensor].name);
    changed += patch.count;
  }
  const double elements = std::max(1.0, static_cast<double>(table.elements()));
  std::string path = directory + "/deltas/" + trl_step_name(header.version);
  write_pairs(fs, path, patches, table,
              {{"sparse", "True"},
               {"model_version", std::to_string(header.version)},
               {"sparsity", fmt::format("{:.6f}", 1 - static_cast<double>(changed) / elements)},
               {"changed_params", names.dump()}});
  return path;
}

std::string write_vllm_update(FileSystem& fs, const DeltaHeader& header, const std::vector<TensorPatch>& patches,
                              const TensorTable& table, const std::string& directory) {
  VllmUpdate update(table);
  for (const TensorPatch& patch : patches) update.add(patch);
  make_output_directory(fs, directory);
  std::string path = fmt::format("{}/update_{:06d}.safetensors", directory, header.version);
  write_pairs(fs, path, patches, table,
              {{"sparse", "True"}, {"model_version", std::to_string(header.version)}, {"update_info", update.json()}});
  return path;
}

std::string write_trl_anchor(FileSystem& fs, const Checkpoint& checkpoint, std::uint64_t version,
                             const std::string& directory) {
  make_output_directory(fs, directory);
  make_output_directory(fs, directory + "/anchors");
  std::string path = directory + "/anchors/" + trl_step_name(version);
  require_absent(fs, path);
  write_all_tensors(fs, checkpoint, path,
                    {{"sparse", "False"}, {"model_version", std::to_string(version)}, {"sparsity", "0.0"}});
  return path;
}

void write_all_tensors(FileSystem& fs, const Checkpoint& checkpoint, const std::string& path,
                       const std::map<std::string, std::string>& metadata) {
  constexpr std::uint64_t kWindowBytes = std::uint64_t{8} << 20;
  const TensorTable& table = checkpoint.table();
  // Wide elements first, so that every tensor is aligned.
  std::vector<std::size_t> order;
  for (const std::size_t size : {8, 4, 2, 1}) {
    for (std::size_t t = 0; t < table.size(); ++t) {
      if (element_size(table[t].dtype) == size) order.push_back(t);
    }
  }
  std::vector<TensorSpec> specs;
  for (const std::size_t t : order) specs.push_back(table[t]);
  SafetensorsWriter writer(fs, path, specs, metadata);
  for (const std::size_t t : order) {
    const ConstBytes tensor = checkpoint.tensor(t);
    for (std::uint64_t begin = 0; begin < tensor.size(); begin += kWindowBytes) {
      const std::uint64_t bytes = std::min(kWindowBytes, tensor.size() - begin);
      writer.append(tensor.subspan(begin, bytes));
      checkpoint.release(t, begin, bytes);
    }
  }
  writer.finish();
}

}  // namespace sparsecast
