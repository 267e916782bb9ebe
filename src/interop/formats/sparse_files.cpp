// SPDX-License-Identifier: Apache-2.0
#include "interop/formats/sparse_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "interop/formats/directory_output.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/interop.hpp"

namespace sparsecast {
namespace {

/// Writes indices before values, and wide values before narrow ones, so that every tensor is aligned, as PyTorch's
/// readers require.
void write_pairs(FileSystem& fs, const std::string& path, const TensorPatches& patches, const TensorTable& table,
                 const std::map<std::string, std::string>& metadata) {
  require_absent(fs, path);
  struct Content {
    std::size_t patch;
    bool values;
  };
  std::vector<TensorSpec> specs;
  std::vector<Content> contents;
  const auto add_values = [&](std::size_t size) {
    for (std::size_t n = 0; n < patches.heads.size(); ++n) {
      const TensorSpec& spec = table[patches.heads[n].tensor];
      if (element_size(spec.dtype) != size) continue;
      // For fp6, the changes are single bytes, not elements.
      specs.push_back({spec.name + ".values", is_fp6(spec.dtype) ? DType::kU8 : spec.dtype, {patches.heads[n].count}});
      contents.push_back({n, true});
    }
  };
  add_values(8);  // These go first: after an odd number of I32 entries, 8-byte values would not be aligned.
  for (std::size_t n = 0; n < patches.heads.size(); ++n) {
    specs.push_back({table[patches.heads[n].tensor].name + ".indices", DType::kI32, {patches.heads[n].count}});
    contents.push_back({n, false});
  }
  for (const std::size_t size : {4, 2, 1}) add_values(size);
  SafetensorsWriter writer(fs, path, specs, metadata);
  Bytes room;
  for (const auto& [n, values] : contents) {
    const TensorPatch patch = patches.read(n, room);
    writer.append(values ? patch.values : patch.indices);
  }
  writer.finish();
}

}  // namespace

std::string trl_step_name(std::uint64_t version) { return fmt::format("step_{:06d}.safetensors", version); }

std::string write_trl_step(FileSystem& fs, const DeltaHeader& header, const TensorPatches& patches,
                           const TensorTable& table, const std::string& directory) {
  make_output_directory(fs, directory);
  make_output_directory(fs, directory + "/deltas");
  nlohmann::ordered_json names = nlohmann::ordered_json::array();
  std::uint64_t changed = 0;
  for (const auto& [tensor, count] : patches.heads) {
    names.push_back(table[tensor].name);
    changed += count;
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

std::string write_vllm_update(FileSystem& fs, const DeltaHeader& header, const TensorPatches& patches,
                              const TensorTable& table, const std::string& directory) {
  VllmUpdate update(table);
  Bytes room;
  for (std::size_t n = 0; n < patches.heads.size(); ++n) update.add(patches.read(n, room));
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
  Bytes window;
  for (const std::size_t t : order) {
    for (std::uint64_t begin = 0; begin < table[t].bytes(); begin += window.size()) {
      window.resize(std::min(kWindowBytes, table[t].bytes() - begin));
      checkpoint.read(t, begin, window);
      writer.append(window);
    }
  }
  writer.finish();
}

}  // namespace sparsecast
