// SPDX-License-Identifier: Apache-2.0
#pragma once

// A small model in training, and its versions as delta files: what tests of delta logs publish. The same seed makes the
// same bytes.

#include <map>
#include <memory>
#include <string>

#include "sparsecast/delta_log.hpp"
#include "support/delta_bytes.hpp"
#include "support/random.hpp"
#include "support/safetensors_bytes.hpp"

namespace sparsecast::test {

class LogScene {
 public:
  explicit LogScene(std::uint64_t seed = 1, std::uint64_t elements = 200) : random_(seed) {
    table_ = std::make_shared<TensorTable>(std::vector<TensorSpec>{
        {"a.weight", DType::kBF16, {elements}}, {"b.bias", DType::kF32, {7}}, {"c.weight", DType::kBF16, {3, 5}}});
    TensorState state;
    for (const TensorSpec& spec : *table_) {
      Bytes bits(spec.bytes());
      for (std::byte& byte : bits) byte = static_cast<std::byte>(random_.next() & 0x3F);
      state.push_back(std::move(bits));
    }
    states_[0] = std::move(state);
  }

  const std::shared_ptr<const TensorTable>& table() const { return table_; }
  StreamId stream() const { return table_->hash(); }

  /// The state of the model after so many steps; takeovers make versions without steps.
  const TensorState& state(std::uint64_t step) {
    while (states_.rbegin()->first < step) {
      TensorState next = states_.rbegin()->second;
      for (int i = 0; i < 3; ++i) {
        write_element(next[0].data(), 2, random_.below(next[0].size() / 2), random_.next() & 0x3FFF);
      }
      write_element(next[1].data(), 4, random_.below(7), random_.next() & 0x3FFFFFFF);
      states_[states_.rbegin()->first + 1] = std::move(next);
    }
    return states_.at(step);
  }
  StateDigest digest(std::uint64_t step) { return sum(digest_tensors(*table_, refs_to(*table_, views(state(step))))); }

  /// Returns the delta of `version` from the state of one step to that of another.
  Bytes delta(std::uint64_t from_step, std::uint64_t to_step, std::uint64_t version,
              const EncodeOptions& options = {}) {
    state(to_step);
    return encode_file(*table_, state(from_step), state(to_step), options, {version - 1, version});
  }
  /// One safetensors file of that state.
  Bytes checkpoint(std::uint64_t step) {
    std::string data;
    for (const Bytes& bits : state(step)) data.append(reinterpret_cast<const char*>(bits.data()), bits.size());
    return safetensors_file(std::vector<TensorSpec>(table_->begin(), table_->end()), data);
  }
  LogCreation creation(std::uint64_t first_version = 0) {
    LogCreation creation;
    creation.stream = stream();
    creation.first_version = first_version;
    creation.table = table_;
    creation.digest = digest(0);
    return creation;
  }

 private:
  std::shared_ptr<const TensorTable> table_;
  Random random_;
  std::map<std::uint64_t, TensorState> states_;
};

}  // namespace sparsecast::test
