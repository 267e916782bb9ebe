// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/digest.hpp"
#include "sparsecast/tensor.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/digest_common.hpp"
#include "core/digest_kernels.hpp"
#include "core/parallel.hpp"
#include "core/tensor_view.hpp"
#include "core/word.hpp"
#include "sparsecast/error.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace sparsecast {
namespace {

/// Adds up elements one by one: `count` of them that lie `step` elements apart in memory and `index_step` apart in the
/// digest.
template <class T>
void sum_one_by_one(const Hash128& key, std::uint64_t first, std::int64_t index_step, const std::byte* bits,
                    std::int64_t step, std::uint64_t count, DigestSum& sum) {
  std::uint64_t counter = digest_counter(key.lo, first);
  const std::uint64_t counter_step = static_cast<std::uint64_t>(index_step) * kDigestStep;
  for (std::uint64_t i = 0; i < count; ++i, counter += counter_step) {
    const T word = load_word<T>(bits + static_cast<std::int64_t>(i) * step * static_cast<std::int64_t>(sizeof(T)));
    digest_add(sum, digest_weight(counter, key.hi), digest_word(word));
  }
}

/// Adds up such elements, with vector instructions where they are contiguous.
template <class T>
void sum_run(const Hash128& key, std::uint64_t first, std::int64_t index_step, const std::byte* bits, std::int64_t step,
             std::uint64_t count, DigestSum& sum) {
  if (step == 1) {
    const std::uint64_t done =
        cpu::sum_elements(digest_counter(key.lo, first), static_cast<std::uint64_t>(index_step) * kDigestStep, key.hi,
                          bits, count, sizeof(T), sum);
    first += done * static_cast<std::uint64_t>(index_step);
    bits += done * sizeof(T);
    count -= done;
  }
  sum_one_by_one<T>(key, first, index_step, bits, step, count, sum);
}

/// Sums run by run. The runs in memory and those in the digest may have different lengths.
template <class T>
DigestSum sum_strided(const DigestIndex& index, const TensorView& tensor, std::uint64_t first, std::uint64_t count) {
  ElementWalk places(tensor.view);
  ElementWalk indices = index.walk();
  DigestSum total;
  for (const std::uint64_t end = first + count; first < end;) {
    const std::byte* bits = tensor.data + places.offset(first) * static_cast<std::int64_t>(sizeof(T));
    const std::uint64_t at = index.first + static_cast<std::uint64_t>(indices.offset(first));
    const std::uint64_t length = std::min({places.left(first), indices.left(first), end - first});
    sum_run<T>(index.key, at, indices.step(), bits, places.step(), length, total);
    first += length;
  }
  return total;
}

}  // namespace

StateDigest digest_span(const Hash128& key, DType dtype, std::uint64_t first, std::span<const std::byte> bits) {
  const DigestIndex index{key, first, true, {}};
  return digest_elements(index, dtype, {bits.data(), nullptr}, 0, bits.size() / element_size(dtype));
}

StateDigest digest_elements(const DigestIndex& index, DType dtype, const TensorView& tensor, std::uint64_t first,
                            std::uint64_t count) {
  const DigestSum total =
      with_word(element_size(dtype), [&]<class T>() { return sum_strided<T>(index, tensor, first, count); });
  return {{total.lo, total.hi}};
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
