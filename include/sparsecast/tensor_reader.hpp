// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "sparsecast/export.hpp"
#include "sparsecast/tensor_table.hpp"

namespace sparsecast {

/// Contiguous host tensors that are read piece by piece, from memory or from files, which outlive it and its copies.
class SPARSECAST_API TensorReader {
 public:
  /// Fills `room` with the bytes of a tensor from `begin_byte` on. May run concurrently.
  using Read = std::function<void(std::size_t tensor, std::uint64_t begin_byte, MutableBytes room)>;

  /// Reads tensors that lie in memory. A conversion, so that such tensors can be given where a reader is wanted.
  TensorReader(std::span<const ConstBytes> tensors);    // NOLINT(google-explicit-constructor)
  TensorReader(const std::vector<ConstBytes>& tensors)  // NOLINT(google-explicit-constructor)
      : TensorReader(std::span<const ConstBytes>(tensors)) {}
  /// Reads the tensors of a table by `read`.
  TensorReader(const TensorTable& table, Read read);

  std::size_t size() const noexcept { return bytes_.size(); }                  ///< Number of tensors.
  std::uint64_t bytes(std::size_t tensor) const { return bytes_.at(tensor); }  ///< Bytes of one of them.
  /// Reads room.size() bytes of a tensor from `begin_byte` on, which must be in it. Throws Error{kIo} that names file,
  /// tensor and offset.
  void read(std::size_t tensor, std::uint64_t begin_byte, MutableBytes room) const { read_(tensor, begin_byte, room); }

 private:
  std::vector<std::uint64_t> bytes_;
  Read read_;
};

}  // namespace sparsecast
