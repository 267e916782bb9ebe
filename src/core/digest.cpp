// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/digest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "core/digest_common.hpp"
#include "core/parallel.hpp"
#include "core/tensor_view.hpp"
#include "core/word.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/hash.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace sparsecast {
namespace {

/// Sums `count` elements that lie `step` elements apart in memory and `index_step` apart in the digest. Steps are
/// numbers, or kOne to make the step a compile-time constant.
template <class T, class IndexStep, class Step>
DigestSum sum_run(const Hash128& key, std::uint64_t first, IndexStep index_step, const std::byte* bits, Step step,
                  std::uint64_t count) {
  const auto add = [&](DigestSum& sum, std::uint64_t i) {
    const auto at = static_cast<std::int64_t>(i) * step * static_cast<std::int64_t>(sizeof(T));
    digest_add(sum, digest_multiplier(key.lo, first + i * static_cast<std::uint64_t>(std::int64_t{index_step})),
               digest_multiplicand(key.hi, load_word<T>(bits + at)));
  };
  // Two accumulators: the additions with carry are the longest dependency chain.
  DigestSum even;
  DigestSum odd;
  std::uint64_t i = 0;
  for (; i + 2 <= count; i += 2) {
    add(even, i);
    add(odd, i + 1);
  }
  if (i < count) add(even, i);
  StateDigest total{{even.lo, even.hi}};
  total += StateDigest{{odd.lo, odd.hi}};
  return {total.value.lo, total.value.hi};
}

constexpr std::integral_constant<std::int64_t, 1> kOne;

/// Sums run by run. The runs in memory and those in the digest may have different lengths.
template <class T>
StateDigest sum_strided(const DigestIndex& index, const TensorView& tensor, std::uint64_t first, std::uint64_t count) {
  ElementWalk places(tensor.view);
  ElementWalk indices = index.walk();
  StateDigest total;
  for (const std::uint64_t end = first + count; first < end;) {
    const std::byte* bits = tensor.data + places.offset(first) * static_cast<std::int64_t>(sizeof(T));
    const std::uint64_t at = index.first + static_cast<std::uint64_t>(indices.offset(first));
    const std::uint64_t length = std::min({places.left(first), indices.left(first), end - first});
    const DigestSum run = places.step() == 1 && indices.step() == 1
                              ? sum_run<T>(index.key, at, kOne, bits, kOne, length)
                              : sum_run<T>(index.key, at, indices.step(), bits, places.step(), length);
    total += StateDigest{{run.lo, run.hi}};
    first += length;
  }
  return total;
}

}  // namespace

StateDigest digest_span(const Hash128& key, DType dtype, std::uint64_t first, std::span<const std::byte> bits) {
  const std::size_t bytes = element_size(dtype);
  const DigestSum total =
      with_word(bytes, [&]<class T>() { return sum_run<T>(key, first, kOne, bits.data(), kOne, bits.size() / bytes); });
  return {{total.lo, total.hi}};
}

StateDigest digest_elements(const DigestIndex& index, DType dtype, const TensorView& tensor, std::uint64_t first,
                            std::uint64_t count) {
  const std::size_t bytes = element_size(dtype);
  if (index.flat && tensor.view == nullptr) {
    return digest_span(index.key, dtype, index.first + first, {tensor.data + first * bytes, count * bytes});
  }
  return with_word(bytes, [&]<class T>() { return sum_strided<T>(index, tensor, first, count); });
}

std::vector<StateDigest> digest_tensors(const TensorTable& table, std::size_t first_tensor,
                                        std::span<const TensorView> tensors, int threads) {
  struct Slice {
    std::size_t tensor;  // Index into `tensors`.
    std::uint64_t first;
    std::uint64_t count;
    StateDigest digest;
  };
  constexpr std::uint64_t kSliceElems = std::uint64_t{1} << 20;
  std::vector<Slice> slices;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::uint64_t elements = table[first_tensor + t].elements();
    for (std::uint64_t first = 0; first < elements; first += kSliceElems) {
      slices.push_back({t, first, std::min(kSliceElems, elements - first), {}});
    }
  }
  parallel_for(threads, slices.size(), [&](std::size_t, std::size_t i) {
    Slice& slice = slices[i];
    const std::size_t tensor = first_tensor + slice.tensor;
    slice.digest = digest_elements(digest_index_of(table, tensor), table[tensor].dtype, tensors[slice.tensor],
                                   slice.first, slice.count);
  });
  std::vector<StateDigest> digests(tensors.size());
  for (const Slice& slice : slices) digests[slice.tensor] += slice.digest;
  return digests;
}

std::vector<StateDigest> digest_tensors(const TensorTable& table, const std::vector<TensorRef>& tensors, int threads) {
  const auto places = place_read_tensors(table, tensors, "host");
  return digest_tensors(table, 0, std::vector<TensorView>(places.begin(), places.end()), threads);
}

StateDigest sum(std::span<const StateDigest> parts) noexcept {
  StateDigest total;
  for (const StateDigest& part : parts) total += part;
  return total;
}

std::string to_hex(const Hash128& value) { return fmt::format("{:016x}{:016x}", value.hi, value.lo); }

Hash128 hash_from_hex(const std::string& text) {
  if (text.size() != 32 || text.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
    throw Error(ErrorCode::kUsage, fmt::format("'{}' is not 32 hexadecimal digits", text));
  }
  return {std::stoull(text.substr(16), nullptr, 16), std::stoull(text.substr(0, 16), nullptr, 16)};
}

std::uint64_t xxh3_64(std::span<const std::byte> bytes, std::uint64_t seed) noexcept {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

Hash128 xxh3_128(std::span<const std::byte> bytes) noexcept {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

}  // namespace sparsecast
