#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sparsecast/tensor_table.hpp"

namespace sparsecast::bench {

/// Bytes aligned to a cache line, not initialised.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t bytes);

  std::span<std::byte> bytes() noexcept { return {memory_.get(), size_}; }
  std::span<const std::byte> bytes() const noexcept { return {memory_.get(), size_}; }

 private:
  struct Release {
    void operator()(std::byte* memory) const noexcept;
  };
  std::unique_ptr<std::byte[], Release> memory_;
  std::size_t size_ = 0;
};

/// All tensors of a table in one buffer without gaps, wider elements first so that each tensor is aligned: what a dense
/// broadcast sends, and not a byte more.
class Weights {
 public:
  explicit Weights(const TensorTable& table);

  std::span<std::byte> all() noexcept { return buffer_.bytes(); }
  std::span<const std::byte> all() const noexcept { return buffer_.bytes(); }
  const std::vector<TensorBytes>& tensors() const noexcept { return tensors_; }
  std::vector<ConstTensorBytes> views() const { return {tensors_.begin(), tensors_.end()}; }

 private:
  AlignedBuffer buffer_;
  std::vector<TensorBytes> tensors_;
};

/// Elements whose bits differ, by looking at all of them.
std::uint64_t count_differing(const TensorTable& table, std::span<const TensorBytes> found,
                              std::span<const TensorBytes> expected);

/// The same for one array of `element_bytes` (1, 2, 4 or 8) wide elements.
std::uint64_t count_differing(std::span<const std::byte> found, std::span<const std::byte> expected,
                              std::size_t element_bytes);

}  // namespace sparsecast::bench
