#include "sparsecast/digest.hpp"

#include <algorithm>

#include "core/digest_common.hpp"
#include "core/parallel.hpp"
#include "core/word.hpp"

namespace sparsecast {
namespace {

template <class T>
DigestSum sum_span(const Hash128& key, std::uint64_t first, const std::byte* bits, std::size_t count) {
  // Two accumulators: the additions with carry are the longest dependency chain.
  DigestSum even;
  DigestSum odd;
  std::size_t i = 0;
  for (; i + 2 <= count; i += 2) {
    digest_add(even, digest_multiplier(key.lo, first + i), digest_multiplicand(key.hi, load_word<T>(bits, i)));
    digest_add(odd, digest_multiplier(key.lo, first + i + 1), digest_multiplicand(key.hi, load_word<T>(bits, i + 1)));
  }
  if (i < count) {
    digest_add(even, digest_multiplier(key.lo, first + i), digest_multiplicand(key.hi, load_word<T>(bits, i)));
  }
  StateDigest total{{even.lo, even.hi}};
  total += StateDigest{{odd.lo, odd.hi}};
  return {total.value.lo, total.value.hi};
}

}  // namespace

StateDigest digest_span(const Hash128& key, DType dtype, std::uint64_t first, std::span<const std::byte> bits) {
  const std::size_t bytes = element_size(dtype);
  const DigestSum total =
      with_word(bytes, [&]<class T>() { return sum_span<T>(key, first, bits.data(), bits.size() / bytes); });
  return {{total.lo, total.hi}};
}

std::vector<StateDigest> digest_tensors(const TensorTable& table, std::span<const ConstTensorBytes> tensors,
                                        int threads) {
  struct Slice {
    std::size_t tensor;
    std::uint64_t first;
    std::uint64_t count;
    StateDigest digest;
  };
  constexpr std::uint64_t kSliceElems = std::uint64_t{1} << 20;
  std::vector<Slice> slices;
  for (std::size_t t = 0; t < table.size(); ++t) {
    const std::uint64_t elements = table[t].elements();
    for (std::uint64_t first = 0; first < elements; first += kSliceElems) {
      slices.push_back({t, first, std::min(kSliceElems, elements - first), {}});
    }
  }
  parallel_for(threads, slices.size(), [&](std::size_t, std::size_t i) {
    Slice& slice = slices[i];
    const std::size_t size = element_size(table[slice.tensor].dtype);
    slice.digest = digest_span(table.digest_key(slice.tensor), table[slice.tensor].dtype, slice.first,
                               tensors[slice.tensor].subspan(slice.first * size, slice.count * size));
  });
  std::vector<StateDigest> digests(table.size());
  for (const Slice& slice : slices) digests[slice.tensor] += slice.digest;
  return digests;
}

StateDigest sum(std::span<const StateDigest> parts) noexcept {
  StateDigest total;
  for (const StateDigest& part : parts) total += part;
  return total;
}

}  // namespace sparsecast
