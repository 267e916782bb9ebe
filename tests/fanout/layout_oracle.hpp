// SPDX-License-Identifier: Apache-2.0
#pragma once

// Canonical tensors filled with distinct numbers, the few operations on matrices by which frameworks document their
// cuts, and what a layout's shards say that a local tensor holds.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "sparsecast/layout.hpp"

namespace sparsecast::test {

using Numbers = std::vector<std::int64_t>;

inline constexpr std::int64_t kPadding = -1;

/// Element `flat` of tensor `tensor` of a table.
inline std::int64_t number_of(std::size_t tensor, std::uint64_t flat) {
  return static_cast<std::int64_t>(tensor) * 1000000 + static_cast<std::int64_t>(flat);
}

/// Row-major.
struct Matrix {
  std::size_t rows = 0;
  std::size_t columns = 0;
  Numbers numbers;

  std::int64_t at(std::size_t r, std::size_t c) const { return numbers[r * columns + c]; }
};

/// A canonical tensor of 1 or 2 dimensions; one of 3 as a matrix of its last two, `index` in the first.
inline Matrix canonical(const TensorTable& table, const std::string& name, std::size_t index = 0) {
  const std::size_t tensor = *table.find(name);
  const std::vector<std::uint64_t>& shape = table[tensor].shape;
  Matrix matrix;
  matrix.rows = shape.size() == 3 ? shape[1] : shape[0];
  matrix.columns = shape.size() == 1 ? 1 : shape.back();
  const std::size_t size = matrix.rows * matrix.columns;
  for (std::size_t i = 0; i < size; ++i) matrix.numbers.push_back(number_of(tensor, index * size + i));
  return matrix;
}

inline Matrix rows_of(const Matrix& m, std::size_t begin, std::size_t end) {
  Matrix out{end - begin, m.columns, {}};
  for (std::size_t r = begin; r < end; ++r) {
    for (std::size_t c = 0; c < m.columns; ++c) out.numbers.push_back(m.at(r, c));
  }
  return out;
}

inline Matrix columns_of(const Matrix& m, std::size_t begin, std::size_t end) {
  Matrix out{m.rows, end - begin, {}};
  for (std::size_t r = 0; r < m.rows; ++r) {
    for (std::size_t c = begin; c < end; ++c) out.numbers.push_back(m.at(r, c));
  }
  return out;
}

inline Matrix transposed(const Matrix& m) {
  Matrix out{m.columns, m.rows, {}};
  for (std::size_t c = 0; c < m.columns; ++c) {
    for (std::size_t r = 0; r < m.rows; ++r) out.numbers.push_back(m.at(r, c));
  }
  return out;
}

/// One under the other.
inline Matrix joined(const std::vector<Matrix>& parts) {
  Matrix out{0, parts.front().columns, {}};
  for (const Matrix& part : parts) {
    EXPECT_EQ(part.columns, out.columns);
    out.rows += part.rows;
    out.numbers.insert(out.numbers.end(), part.numbers.begin(), part.numbers.end());
  }
  return out;
}

inline Matrix padded(Matrix m, std::size_t rows) {
  m.rows = rows;
  m.numbers.resize(rows * m.columns, kPadding);
  return m;
}

inline std::size_t local_index(const Layout& layout, std::size_t rank, const std::string& name) {
  const std::vector<LocalTensor>& tensors = layout.ranks()[rank].tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name == name) return i;
  }
  ADD_FAILURE() << "rank " << rank << " has no local tensor " << name;
  return 0;
}

inline bool holds(const Layout& layout, std::size_t rank, const std::string& name) {
  for (const LocalTensor& local : layout.ranks()[rank].tensors) {
    if (local.name == name) return true;
  }
  return false;
}

/// The numbers in a local tensor, element by element as its shards say.
inline Numbers held(const Layout& layout, std::size_t rank, const std::string& name) {
  const std::size_t local = local_index(layout, rank, name);
  Numbers numbers(layout.ranks()[rank].tensors[local].elements, kPadding);
  for (const Shard& shard : layout.ranks()[rank].shards) {
    if (shard.local != local) continue;
    const std::vector<std::uint64_t>& shape = layout.table()[shard.tensor].shape;
    std::vector<std::uint64_t> at(shape.size(), 0);
    for (std::uint64_t n = 0; n < shard.box.elements(); ++n) {
      std::uint64_t flat = 0;
      std::uint64_t element = shard.first;
      for (std::size_t d = 0; d < shape.size(); ++d) {
        flat = flat * shape[d] + shard.box.offset[d] + at[d];
        element += at[d] * static_cast<std::uint64_t>(shard.strides[d]);
      }
      EXPECT_EQ(numbers.at(element), kPadding) << "two shards on one element";
      numbers.at(element) = number_of(shard.tensor, flat);
      for (std::size_t d = shape.size(); d-- > 0 && ++at[d] == shard.box.extent[d];) at[d] = 0;
    }
  }
  return numbers;
}

}  // namespace sparsecast::test
