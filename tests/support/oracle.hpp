// SPDX-License-Identifier: Apache-2.0
#pragma once

// Expected results, computed in the plainest way: element by element, byte by byte.

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "sparsecast/delta.hpp"

namespace sparsecast::test {

/// The bytes of every tensor of a table.
using TensorState = std::vector<Bytes>;

inline std::vector<ConstBytes> views(const TensorState& state) { return {state.begin(), state.end()}; }
inline std::vector<MutableBytes> live_views(TensorState& state) { return {state.begin(), state.end()}; }

inline std::uint64_t read_element(const std::byte* base, std::size_t element_bytes, std::uint64_t index) {
  std::uint64_t value = 0;
  std::memcpy(&value, base + index * element_bytes, element_bytes);
  return value;
}
inline void write_element(std::byte* base, std::size_t element_bytes, std::uint64_t index, std::uint64_t value) {
  std::memcpy(base + index * element_bytes, &value, element_bytes);
}

/// Elements whose bits differ.
inline std::uint64_t count_changes(const TensorTable& table, const TensorState& a, const TensorState& b) {
  std::uint64_t changed = 0;
  for (std::size_t t = 0; t < table.size(); ++t) {
    const std::size_t size = element_size(table[t].dtype);
    for (std::uint64_t i = 0; i < table[t].elements(); ++i) {
      if (read_element(a[t].data(), size, i) != read_element(b[t].data(), size, i)) ++changed;
    }
  }
  return changed;
}

/// Returns the first difference of two states as text; empty if they are equal.
inline std::string first_difference(const TensorTable& table, const TensorState& found, const TensorState& expected) {
  for (std::size_t t = 0; t < table.size(); ++t) {
    const std::size_t size = element_size(table[t].dtype);
    for (std::uint64_t i = 0; i < table[t].elements(); ++i) {
      const std::uint64_t a = read_element(found[t].data(), size, i);
      const std::uint64_t b = read_element(expected[t].data(), size, i);
      if (a != b) {
        return "tensor '" + table[t].name + "' element " + std::to_string(i) + ": " + std::to_string(a) + ", not " +
               std::to_string(b);
      }
    }
  }
  return {};
}

}  // namespace sparsecast::test
