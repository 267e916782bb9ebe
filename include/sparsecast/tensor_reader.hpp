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

/// Reads contiguous host tensors piece by piece, from memory or from files, which must outlive the reader and its
/// copies.
class SPARSECAST_API TensorReader {
 public:
  /// Fills `room` with the bytes of a tensor from `begin_byte` on. May run concurrently.
  using Read = std::function<void(std::size_t tensor, std::uint64_t begin_byte, MutableBytes room)>;

  /// Reads tensors that lie in memory. Implicit, so that they can be passed where a reader is expected.
  TensorReader(std::span<const ConstBytes> tensors);    // NOLINT(google-explicit-constructor)
  TensorReader(const std::vector<ConstBytes>& tensors)  // NOLINT(google-explicit-constructor)
      : TensorReader(std::span<const ConstBytes>(tensors)) {}
  /// Reads the tensors of a table by `read`.
  TensorReader(const TensorTable& table, Read read);

  std::size_t size() const noexcept { return bytes_.size(); }                  ///< Number of tensors.
  std::uint64_t bytes(std::size_t tensor) const { return bytes_.at(tensor); }  ///< Size of a tensor in bytes.
  /// Reads room.size() bytes of a tensor from `begin_byte` on; the range must lie within the tensor. Throws Error{kIo}
  /// that names file, tensor and offset.
  void read(std::size_t tensor, std::uint64_t begin_byte, MutableBytes room) const { read_(tensor, begin_byte, room); }

 private:
  std::vector<std::uint64_t> bytes_;
  Read read_;
};

}  // namespace sparsecast
