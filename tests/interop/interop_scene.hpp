// SPDX-License-Identifier: Apache-2.0
#pragma once

// A base checkpoint in memory, a state after it, and the delta between them: what tests of other systems' layouts need.

#include <string>
#include <vector>

#include "interop/formats/patch_store.hpp"
#include "sparsecast/interop.hpp"
#include "sparsecast/publisher.hpp"
#include "sparsecast/tensor_patch.hpp"
#include "support/fault_fs.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"
#include "support/safetensors_bytes.hpp"

namespace sparsecast::test {

inline std::string text_of(ConstBytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
inline Bytes bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}
/// Little-endian words of an integer type.
template <class T>
Bytes packed_words(const std::vector<T>& words) {
  const auto bytes = std::as_bytes(std::span(words));
  return {bytes.begin(), bytes.end()};
}

struct InteropScene {
  /// Names must ascend: a checkpoint's table is in their order.
  InteropScene(std::vector<TensorSpec> specs, std::uint64_t seed, double density) : table(std::move(specs)) {
    Random random(seed);
    for (const TensorSpec& spec : table) {
      Bytes bytes(spec.bytes());
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
      before.push_back(std::move(bytes));
    }
    after = before;
    for (std::size_t t = 0; t < table.size(); ++t) {
      const std::size_t size = element_size(table[t].dtype);
      for (std::uint64_t e = 0; e < table[t].elements(); ++e) {
        if (random.chance(density)) {
          write_element(after[t].data(), size, e, read_element(after[t].data(), size, e) ^ (1 + random.below(100)));
        }
      }
    }
    fs.put_file(kBase, text_of(checkpoint_bytes(before)));
  }

  Bytes checkpoint_bytes(const TensorState& state) const {
    std::string data;
    for (const Bytes& tensor : state) data += text_of(tensor);
    return safetensors_file(std::vector<TensorSpec>(table.begin(), table.end()), data);
  }
  Checkpoint base() { return Checkpoint::open(fs, kBase); }

  DeltaHeader header() const {
    DeltaHeader header;
    header.base_version = 6;
    header.version = 7;
    header.base_digest = sum(digest_tensors(table, refs_to(table, views(before))));
    return header;
  }

  /// The delta file between the two states.
  Bytes delta_bytes(ValueCodec values) const {
    EncodeOptions options;
    options.values = values;
    Bytes file;
    const auto detector = make_compare_detector(table, views(after), views(before));
    encode_delta(table, *detector, header(), options, true,
                 [&](Bytes&& record) { file.insert(file.end(), record.begin(), record.end()); });
    return file;
  }

  /// Returns the state after applying the step as a delta.
  TensorState state_after(const ForeignStep& step) {
    Bytes file;
    const Checkpoint checkpoint = base();
    read_foreign_step(fs, step, checkpoint, header(), {}, "scratch",
                      [&](Bytes&& record) { file.insert(file.end(), record.begin(), record.end()); });
    TensorState state = before;
    for_each_patch(DeltaFile::over(file, "read"), views(before), [&](const TensorPatch& patch) {
      const std::size_t size = element_size(table[patch.tensor].dtype);
      for (std::uint64_t i = 0; i < patch.count; ++i) {
        write_element(state[patch.tensor].data(), size, read_element(patch.indices.data(), 4, i),
                      read_element(patch.values.data(), size, i));
      }
    });
    return state;
  }

  static constexpr const char* kBase = "base.safetensors";
  FaultFileSystem fs;
  TensorTable table;
  TensorState before;
  TensorState after;
};

}  // namespace sparsecast::test
