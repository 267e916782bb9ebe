// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "core/tensor_view.hpp"
#include "cuda/common/device_memory.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast::cuda {

/// One allocation in which each tensor of a table has its own range of bytes, which is aligned for vector loads at full
/// speed.
template <MemoryKind kKind>
class TensorMemory {
 public:
  TensorMemory() = default;
  /// Allocates, for each tensor, a range of bytes_of(spec) bytes. Errors name `purpose`. If `beside` is not empty, it
  /// has one element for each tensor, with whose memory the kernels will compare the tensor's range; the address of the
  /// range then equals the address of beside[tensor] modulo 16.
  template <class BytesOf>
  TensorMemory(const TensorTable& table, const BytesOf& bytes_of, const char* purpose = "tensors",
               const std::vector<TensorRef>& beside = {}) {
    constexpr std::uint64_t kAlignment = 256;
    std::uint64_t used = 0;
    for (std::size_t t = 0; t < table.size(); ++t) {
      const std::uint64_t lead = beside.empty() ? 0 : lead_bytes_of(beside[t], table[t].dtype);
      offsets_.push_back(used + lead);
      used += (lead + bytes_of(table[t]) + kAlignment - 1) / kAlignment * kAlignment;
    }
    memory_ = OwnedMemory<kKind>(used, purpose);
  }

  std::size_t size() const noexcept { return offsets_.size(); }
  std::byte* operator[](std::size_t tensor) const { return memory_.as() + offsets_[tensor]; }
  std::byte* begin() const noexcept { return memory_.as(); }
  std::uint64_t bytes() const noexcept { return memory_.bytes(); }

 private:
  std::vector<std::uint64_t> offsets_;
  OwnedMemory<kKind> memory_;
};

}  // namespace sparsecast::cuda
