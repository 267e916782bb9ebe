// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sparsecast/dtype.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/hash.hpp"

namespace sparsecast {

/// Bytes in the caller's memory: ConstBytes are only read, MutableBytes may be written.
using ConstBytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

/// One tensor of a stream, named as in the checkpoint. Elements have a flat 64-bit index in row-major order.
struct SPARSECAST_API TensorSpec {
  std::string name;  ///< UTF-8, 1 to 65535 bytes.
  DType dtype = DType::kBF16;
  std::vector<std::uint64_t> shape;  ///< Empty for a scalar (one element); a zero makes the tensor empty.

  std::uint64_t elements() const noexcept;  ///< Product of the shape; TensorTable checks that it cannot overflow.
  std::uint64_t bytes() const noexcept { return elements() * element_size(dtype); }
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

/// Key and indices under which a tensor's elements count in the state digest. They are the tensor's own, unless the
/// tensor is a box of another tensor: then they are the other tensor's, so that the digests of all boxes that tile it
/// add up to its digest.
struct DigestOrigin {
  Hash128 key;
  std::uint64_t first = 0;            ///< Index in the other tensor of element (0, 0, ...).
  std::vector<std::int64_t> strides;  ///< Index of (i, j, ...) is first + i * strides[0] + ...; empty: first + i.
};

/// The ordered list of tensors that a stream carries. Both ends must agree on it: they compare `hash()`.
/// Immutable, so it may be shared between threads.
class SPARSECAST_API TensorTable {
 public:
  static constexpr std::size_t kMaxTensors = std::size_t{1} << 20;
  static constexpr std::size_t kMaxRank = 32;
  static constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 46;  ///< Limit for one tensor.

  TensorTable() = default;
  /// Throws Error{kUsage} for repeated or empty names and for anything over the limits above.
  explicit TensorTable(std::vector<TensorSpec> specs);
  /// Makes a table of boxes, with the origin of each box. Throws Error{kUsage} also when the numbers of origins and
  /// tensors or of strides and dimensions differ, and for strides of more than 8 dimensions. `hash()` and `serialize()`
  /// do not include origins, which both ends derive from their plan.
  TensorTable(std::vector<TensorSpec> specs, std::vector<DigestOrigin> origins);

  std::size_t size() const noexcept { return specs_.size(); }
  const TensorSpec& operator[](std::size_t i) const { return specs_[i]; }
  std::vector<TensorSpec>::const_iterator begin() const noexcept { return specs_.begin(); }
  std::vector<TensorSpec>::const_iterator end() const noexcept { return specs_.end(); }
  std::optional<std::size_t> find(std::string_view name) const;

  std::uint64_t elements() const noexcept { return elements_; }
  std::uint64_t bytes() const noexcept { return bytes_; }

  /// Returns XXH3-128 of `serialize()`.
  const Hash128& hash() const noexcept { return hash_; }
  /// Returns the key of tensor i in the state digest: XXH3-128 of its entry in `serialize()`, or its origin's key.
  const Hash128& digest_key(std::size_t i) const { return origins_[i].key; }
  const DigestOrigin& digest_origin(std::size_t i) const { return origins_[i]; }

  /// Returns the canonical bytes of docs/wire-format.md, "Tensor table".
  std::vector<std::byte> serialize() const;
  /// Parses the output of serialize(). Throws Error{kCorrupt} for any other bytes.
  static TensorTable parse(std::span<const std::byte> bytes);

 private:
  std::vector<TensorSpec> specs_;
  std::vector<DigestOrigin> origins_;
  std::unordered_map<std::string, std::size_t> by_name_;
  Hash128 hash_;
  std::uint64_t elements_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace sparsecast
