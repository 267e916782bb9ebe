// SPDX-License-Identifier: Apache-2.0

// golden_generator [DIR]: writes the golden vectors of docs/wire-format.md into DIR (testdata/golden), which must
// exist. The same bytes each time, but for zstd bodies and tables, which depend on the version of the zstd library.

#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "golden_vectors.hpp"
#include "sparsecast/safetensors.hpp"

namespace sparsecast::test {
namespace {

class Writer {
 public:
  explicit Writer(std::string directory) : directory_(std::move(directory)) {
    for (const char* part : {"", "/states", "/good", "/bad"}) files_.make_directory(directory_ + part);
  }

  std::string write_state(const std::string& name, const TensorTable& table, const TensorState& state) {
    const std::string path = "states/" + name + ".safetensors";
    if (!written_.insert(path).second) return path;
    SafetensorsWriter writer(files_, directory_ + "/" + path, {table.begin(), table.end()});
    for (const Bytes& bits : state) writer.append(bits);
    writer.finish();
    return path;
  }
  std::string write_bytes(const std::string& path, ConstBytes bytes) {
    if (!written_.insert(path).second) throw std::logic_error("two vectors are called " + path);
    AtomicFile file(files_, directory_ + "/" + path);
    file.append(bytes);
    file.commit();
    return path;
  }
  void add(const GoodVector& vector) {
    const DeltaFile delta = DeltaFile::over(vector.delta, vector.name);
    manifest_["good"].push_back({{"name", vector.name},
                                 {"delta", write_bytes("good/" + vector.name + ".scd", vector.delta)},
                                 {"base", write_state(vector.states + ".base", vector.table, vector.base)},
                                 {"result", write_state(vector.states + ".result", vector.table, vector.result)},
                                 {"changed", delta.commit().changed},
                                 {"base_digest", to_hex(delta.header().base_digest.value)},
                                 {"result_digest", to_hex(delta.commit().result_digest.value)},
                                 {"canonical", vector.canonical}});
  }
  void add(const BadVector& vector, const std::string& base) {
    manifest_["bad"].push_back({{"name", vector.name},
                                {"delta", write_bytes("bad/" + vector.name + ".scd", vector.delta)},
                                {"base", base},
                                {"why", vector.why},
                                {"error", to_string(vector.code)}});
  }
  void finish() {
    const std::string text = manifest_.dump(1) + "\n";
    write_bytes("manifest.json", std::as_bytes(std::span(text)));
    std::printf("%zu good vectors and %zu bad ones in %s\n", manifest_["good"].size(), manifest_["bad"].size(),
                directory_.c_str());
  }

 private:
  FileSystem& files_ = FileSystem::posix();
  std::string directory_;
  std::set<std::string> written_;
  nlohmann::ordered_json manifest_;
};

void write_all(const std::string& directory) {
  Writer writer(directory);
  for (const auto& vectors : {encoded_vectors(), forged_vectors()}) {
    for (const GoodVector& vector : vectors) writer.add(vector);
  }
  const BadBase start = bad_base();
  const std::string base = writer.write_state("bad.base", start.table, start.base);
  for (const auto& vectors : {bad_records(), bad_tables(), bad_blocks()}) {
    for (const BadVector& vector : vectors) writer.add(vector, base);
  }
  writer.finish();
}

}  // namespace
}  // namespace sparsecast::test

int main(int argc, char** argv) {
  try {
    sparsecast::test::write_all(argc > 1 ? argv[1] : SPARSECAST_TESTDATA_DIR "/golden");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "golden_generator: %s\n", error.what());
    return 1;
  }
}
