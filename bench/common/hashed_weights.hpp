// SPDX-License-Identifier: Apache-2.0
#pragma once

// Weights in training whose value at any version is computed from their name and index, so that every rank can generate
// and check its own shards without the whole model. In a header, because tests without benchmarks need it too.

#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "sparsecast/layout.hpp"

namespace sparsecast::bench {

/// Memory of the local tensors of a rank.
using LocalStorage = std::vector<std::vector<std::byte>>;

inline std::vector<TensorRef> refs_of(const Layout& layout, std::size_t rank, LocalStorage& storage) {
  return refs_to(layout, rank, std::vector<MutableBytes>(storage.begin(), storage.end()));
}

/// Generator and checker of such weights.
class HashedWeights {
 public:
  /// Makes weights of which a share of `density` changes at every version: 15 of 16 changes by one ULP, the others by
  /// any difference. Throws std::invalid_argument for a density outside 0 to 1.
  explicit HashedWeights(std::uint64_t seed, double density = 0.01)
      : seed_(seed), threshold_(static_cast<std::uint64_t>(density * 0x1p32)) {
    if (!(density >= 0 && density <= 1)) throw std::invalid_argument("a density is a share, 0 to 1");
  }

  /// Returns the local tensors of a rank at a version. Bytes that no shard covers are padding, with a pattern of its
  /// own.
  LocalStorage make(const Layout& layout, std::size_t rank, std::uint64_t version) const;
  /// Returns local tensors full of that pattern, as of an engine that holds no version yet.
  LocalStorage make_empty(const Layout& layout, std::size_t rank) const;
  /// Changes the tensors from version - 1 to version, in place.
  void train(const Layout& layout, std::size_t rank, std::uint64_t version, LocalStorage& storage) const;
  /// Counts the wrong elements of the shards plus the changed bytes of the padding.
  std::uint64_t count_wrong(const Layout& layout, std::size_t rank, std::uint64_t version,
                            const LocalStorage& storage) const;

 private:
  static constexpr std::byte kPadding{0xA5};

  static std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 31)) * 0x9FB21C651E98DF25U;
    x = (x ^ (x >> 28)) * 0xBF58476D1CE4E5B9U;
    return x ^ (x >> 32);
  }

  /// Returns the difference that a version adds to an element; mostly 0.
  std::uint64_t step(std::uint64_t identity, std::uint64_t version) const {
    const std::uint64_t chance = mix(identity + version * 0x9E3779B97F4A7C15U);
    if ((chance & 0xFFFFFFFFU) >= threshold_) return 0;
    if (chance >> 60 == 0) return chance >> 33;
    return (chance >> 32 & 1) != 0 ? 1 : ~std::uint64_t{0};
  }

  /// Returns the element's bits at a version, in the low bytes.
  std::uint64_t value(std::uint64_t identity, std::uint64_t version) const {
    std::uint64_t value = identity >> 7;
    for (std::uint64_t v = 1; v <= version; ++v) value += step(identity, v);
    return value;
  }

  /// Calls visit(identity, byte of the local tensor, bytes of an element) for every element of the shard. An element's
  /// identity follows from the tensor's name and its index there, whichever shard it is seen in.
  template <class Visit>
  void for_each_element(const Layout& layout, const Shard& shard, const Visit& visit) const;

  std::uint64_t seed_;
  std::uint64_t threshold_;  ///< Density times 2^32.
};

template <class Visit>
void HashedWeights::for_each_element(const Layout& layout, const Shard& shard, const Visit& visit) const {
  const TensorSpec& tensor = layout.table()[layout.original_of(shard.tensor)];
  const std::uint64_t key = seed_ + std::hash<std::string>{}(tensor.name);
  const std::size_t size = element_size(tensor.dtype);
  const std::size_t dims = tensor.shape.size();
  const std::uint64_t row = dims == 0 ? 1 : shard.box.extent[dims - 1];
  const std::uint64_t stride = dims == 0 ? 1 : static_cast<std::uint64_t>(shard.strides[dims - 1]);
  std::vector<std::uint64_t> at(dims, 0);
  for (std::uint64_t rows = shard.box.elements() / row; rows != 0; --rows) {
    std::uint64_t index = 0;
    std::uint64_t element = shard.first;
    for (std::size_t d = 0; d < dims; ++d) {
      index = index * tensor.shape[d] + shard.box.offset[d] + at[d];
      element += at[d] * static_cast<std::uint64_t>(shard.strides[d]);
    }
    for (std::uint64_t i = 0; i < row; ++i) {
      visit(mix(key + (index + i) * 0xD6E8FEB86659FD93U), (element + i * stride) * size, size);
    }
    for (std::size_t d = dims; d > 1; --d) {
      if (++at[d - 2] < shard.box.extent[d - 2]) break;
      at[d - 2] = 0;
    }
  }
}

inline LocalStorage HashedWeights::make(const Layout& layout, std::size_t rank, std::uint64_t version) const {
  LocalStorage storage = make_empty(layout, rank);
  for (const Shard& shard : layout.ranks()[rank].shards) {
    for_each_element(layout, shard, [&](std::uint64_t identity, std::uint64_t byte, std::size_t size) {
      const std::uint64_t made = value(identity, version);
      std::memcpy(storage[shard.local].data() + byte, &made, size);
    });
  }
  return storage;
}

inline LocalStorage HashedWeights::make_empty(const Layout& layout, std::size_t rank) const {
  LocalStorage storage;
  for (const LocalTensor& tensor : layout.ranks()[rank].tensors) {
    storage.emplace_back(tensor.elements * element_size(tensor.dtype), kPadding);
  }
  return storage;
}

inline void HashedWeights::train(const Layout& layout, std::size_t rank, std::uint64_t version,
                                 LocalStorage& storage) const {
  for (const Shard& shard : layout.ranks()[rank].shards) {
    for_each_element(layout, shard, [&](std::uint64_t identity, std::uint64_t byte, std::size_t size) {
      if (step(identity, version) == 0) return;
      const std::uint64_t made = value(identity, version);
      std::memcpy(storage[shard.local].data() + byte, &made, size);
    });
  }
}

inline std::uint64_t HashedWeights::count_wrong(const Layout& layout, std::size_t rank, std::uint64_t version,
                                                const LocalStorage& storage) const {
  std::uint64_t wrong = 0;
  LocalStorage covered;
  for (const auto& tensor : storage) covered.emplace_back(tensor.size());
  for (const Shard& shard : layout.ranks()[rank].shards) {
    for_each_element(layout, shard, [&](std::uint64_t identity, std::uint64_t byte, std::size_t size) {
      const std::uint64_t expected = value(identity, version);
      if (std::memcmp(storage[shard.local].data() + byte, &expected, size) != 0) ++wrong;
      std::memset(covered[shard.local].data() + byte, 1, size);
    });
  }
  for (std::size_t t = 0; t < storage.size(); ++t) {
    for (std::size_t i = 0; i < storage[t].size(); ++i) {
      if (covered[t][i] == std::byte{0} && storage[t][i] != kPadding) ++wrong;
    }
  }
  return wrong;
}

}  // namespace sparsecast::bench
