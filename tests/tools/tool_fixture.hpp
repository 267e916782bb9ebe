// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "sparsecast/delta.hpp"
#include "sparsecast/safetensors.hpp"
#include "tools/common/cli.hpp"

namespace sparsecast::tools {

/// A checkpoint's content in memory: what tests expect.
struct Model {
  std::vector<TensorSpec> specs;
  std::vector<Bytes> tensors;
  friend bool operator==(const Model&, const Model&) = default;
};

inline Model random_model(std::mt19937_64& random) {
  Model model;
  model.specs = {{"a.bias", DType::kF32, {257}},
                 {"a.weight", DType::kBF16, {150, 200}},
                 {"b.scale", DType::kF64, {}},
                 {"b.weight", DType::kBF16, {50001}},
                 {"c.codes", DType::kU8, {33, 1000}},
                 {"c.empty", DType::kI64, {0, 4}},
                 {"c.positions", DType::kI64, {17, 3}},
                 {"d.weight", DType::kF8E4M3, {20000}},
                 {"e.fp4", DType::kF4X2, {50, 80}},
                 {"e.int4", DType::kI4X2, {3000}},
                 {"f.scale", DType::kF8E8M0, {40, 70}},
                 {"g.u16", DType::kU16, {30, 40}},
                 {"g.u32", DType::kU32, {5000}},
                 {"g.u64", DType::kU64, {7, 100}},
                 {"h.c64", DType::kC64, {600}},
                 {"i.e4m3fnuz", DType::kF8E4M3Fnuz, {9, 90}},
                 {"i.e5m2fnuz", DType::kF8E5M2Fnuz, {2000}},
                 {"j.e2m3", DType::kF6E2M3, {20, 48}},
                 {"j.e3m2", DType::kF6E3M2, {3000}}};
  for (const TensorSpec& spec : model.specs) {
    Bytes bytes(spec.bytes());
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    model.tensors.push_back(std::move(bytes));
  }
  return model;
}

/// Changes about one element in `one_in` of every tensor: mostly small steps, now and then all bits.
inline Model changed_model(const Model& model, std::mt19937_64& random, std::uint64_t one_in) {
  Model changed = model;
  for (std::size_t t = 0; t < model.specs.size(); ++t) {
    const std::size_t size = element_size(model.specs[t].dtype);
    for (std::uint64_t e = 0; e < model.specs[t].elements(); ++e) {
      if (random() % one_in != 0) continue;
      std::uint64_t word = 0;
      std::memcpy(&word, changed.tensors[t].data() + e * size, size);
      word = random() % 10 == 0 ? random() : word + 1;
      std::memcpy(changed.tensors[t].data() + e * size, &word, size);
    }
  }
  return changed;
}

/// `specs[i]` for every i in `which`, as one safetensors file.
inline void write_part(FileSystem& fs, const std::string& path, const Model& model,
                       const std::vector<std::size_t>& which, const std::map<std::string, std::string>& metadata) {
  std::vector<TensorSpec> specs;
  for (const std::size_t i : which) specs.push_back(model.specs[i]);
  SafetensorsWriter writer(fs, path, specs, metadata);
  for (const std::size_t i : which) writer.append(model.tensors[i]);
  writer.finish();
}

inline void write_file(FileSystem& fs, const std::string& path, const Model& model) {
  std::vector<std::size_t> all(model.specs.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  write_part(fs, path, model, all, {{"origin", "test"}});
}

inline void write_text(FileSystem& fs, const std::string& path, const std::string& text) {
  const auto file = fs.open(path, OpenMode::kCreate);
  file->write_at(0, std::as_bytes(std::span<const char>(text)));
  file->sync();
}

/// Two files and an index.
inline void write_directory(FileSystem& fs, const std::string& path, const Model& model) {
  fs.make_directory(path);
  std::string index = R"({"metadata": {}, "weight_map": {)";
  std::vector<std::size_t> parts[2];
  for (std::size_t i = 0; i < model.specs.size(); ++i) {
    parts[i % 2].push_back(i);
    index += (i == 0 ? "\"" : ", \"") + model.specs[i].name + "\": \"part-" + std::to_string(i % 2) + ".safetensors\"";
  }
  write_part(fs, path + "/part-0.safetensors", model, parts[0], {{"part", "0"}});
  write_part(fs, path + "/part-1.safetensors", model, parts[1], {{"part", "1"}});
  write_text(fs, path + "/model.safetensors.index.json", index + "}}");
  fs.sync_directory(path);
  fs.sync_directory(parent_directory(path));
}

/// The tensors of a checkpoint, in the order of names.
inline Model read_model(FileSystem& fs, const std::string& path) {
  const Checkpoint checkpoint = Checkpoint::open(fs, path);
  Model model;
  for (std::size_t i = 0; i < checkpoint.table().size(); ++i) {
    model.specs.push_back(checkpoint.table()[i]);
    model.tensors.push_back(checkpoint.tensor(i));
  }
  return model;
}

inline Bytes read_bytes(FileSystem& fs, const std::string& path) { return read_file(fs, path); }

struct Outcome {
  int code;
  std::string out;
  std::string err;
};

inline Outcome run(FileSystem& fs, const std::vector<std::string>& arguments) {
  std::ostringstream out;
  std::ostringstream err;
  Console console{fs, out, err, false};
  const int code = run_cli(arguments, console);
  return {code, out.str(), err.str()};
}

/// A folder of real files that is gone after the test.
class ToolTest : public testing::Test {
 public:
  ~ToolTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

 protected:
  ToolTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "sparsecast_tool_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    folder_ = pattern;
    seed_ = std::random_device{}();
    random_.seed(seed_);
    std::cout << "seed " << seed_ << '\n';
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  Outcome run(const std::vector<std::string>& arguments) { return tools::run(fs_, arguments); }
  bool exists(const std::string& name) { return fs_.exists(path(name)); }
  std::vector<std::string> names() { return fs_.list(folder_.string()); }

  FileSystem& fs_ = FileSystem::posix();
  std::filesystem::path folder_;
  std::uint64_t seed_ = 0;
  std::mt19937_64 random_;
};

}  // namespace sparsecast::tools
