// SPDX-License-Identifier: Apache-2.0
#include "core/digest_kernels.hpp"

#include <algorithm>

#include "core/word.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/digest_kernels.cpp"
#include <hwy/foreach_target.h>  // Compiles this file once for each instruction set.
//
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
// Capitals, as Highway has them: the functions that call these have the same words.
// NOLINTBEGIN(readability-identifier-naming)
namespace sparsecast::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR

using Tag = hn::ScalableTag<std::uint64_t>;
using HalfTag = hn::Repartition<std::uint32_t, Tag>;
using Vec = hn::Vec<Tag>;

/// Elements summed between two additions to the sum of 128 bits: products of 32 by 16 bits then fit words of 64.
constexpr std::uint64_t kChunk = std::uint64_t{1} << 14;

/// Product of the low halves of each word.
HWY_INLINE Vec MultiplyLow(Vec a, Vec b) {
  const HalfTag halves;
  return hn::MulEven(hn::BitCast(halves, a), hn::BitCast(halves, b));
}

HWY_INLINE Vec SwapHalves(Vec a) {
  const HalfTag halves;
  return hn::BitCast(Tag(), hn::Shuffle2301(hn::BitCast(halves, a)));
}

HWY_INLINE Vec Round(Vec x, std::uint32_t multiplier) {
  const Tag d;
  const Vec swapped = SwapHalves(x);
  const Vec high = hn::And(swapped, hn::Set(d, 0xFFFFFFFF00000000ULL));
  return hn::Xor(MultiplyLow(swapped, hn::Set(d, multiplier)), high);
}

/// digest_weight() of elements with these counters.
HWY_INLINE Vec Weights(Vec counters, Vec key_hi) {
  const Tag d;
  const Vec x = hn::Xor3(MultiplyLow(counters, hn::Set(d, kDigestRound1)), counters, key_hi);
  return hn::Or(Round(Round(x, kDigestRound2), kDigestRound3), hn::Set(d, 1));
}

/// Words of memory hold several small elements, or one. What weights are multiplied by (digest_word) is summed in
/// pieces of 16 bits.
template <class T>
constexpr unsigned kEach = 8 / sizeof(T);
constexpr unsigned kPieceBits = 16;

/// digest_word() of an element in each word, which has no other bits.
template <class T>
HWY_INLINE Vec DigestWords(Vec elements) {
  const Tag d;
  const Vec low = hn::Set(d, sizeof(T) == 8 ? 0xFFFFFFFFULL : (std::uint64_t{1} << 8 * sizeof(T) % 64) - 1);
  const Vec base = sizeof(T) == 8 ? hn::And(hn::Add(elements, SwapHalves(elements)), low) : elements;
  const Vec triangles = hn::And(hn::ShiftRight<1>(hn::Add(MultiplyLow(base, base), base)), low);
  return sizeof(T) == 8 ? hn::Or(hn::AndNot(low, elements), triangles) : triangles;
}

/// Adds the products of weights and one piece of each element's word, which begins at bit `kShift`, from element
/// kElement of each word of memory on. `counters` are those of that element.
template <class T, unsigned kShift, unsigned kElement>
HWY_INLINE void AddPieces(Vec words, Vec counters, Vec step, Vec key_hi, Vec& sum_low, Vec& sum_high) {
  const Tag d;
  Vec elements = hn::ShiftRight<8 * sizeof(T) % 64 * kElement>(words);
  if (kElement + 1 < kEach<T>) elements = hn::And(elements, hn::Set(d, (std::uint64_t{1} << 8 * sizeof(T) % 64) - 1));
  Vec pieces = hn::ShiftRight<kShift>(DigestWords<T>(elements));
  if (kShift + kPieceBits < 8 * sizeof(T)) pieces = hn::And(pieces, hn::Set(d, (1U << kPieceBits) - 1));
  const Vec weights = Weights(counters, key_hi);
  sum_low = hn::Add(sum_low, MultiplyLow(weights, pieces));
  sum_high = hn::Add(sum_high, MultiplyLow(SwapHalves(weights), pieces));
  if constexpr (kElement + 1 < kEach<T>) {
    AddPieces<T, kShift, kElement + 1>(words, hn::Add(counters, step), step, key_hi, sum_low, sum_high);
  }
}

/// Adds one piece of each element of `count` whole vectors of words.
template <class T, unsigned kShift>
void SumPieces(std::uint64_t counter, std::uint64_t counter_step, std::uint64_t key_hi, const std::byte* bits,
               std::uint64_t vectors, DigestSum& sum) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  HWY_ALIGN std::uint64_t first[HWY_MAX_BYTES / 8];
  for (std::size_t lane = 0; lane < lanes; ++lane) first[lane] = counter + lane * kEach<T> * counter_step;
  Vec counters = hn::Load(d, first);
  const Vec step = hn::Set(d, counter_step);
  const Vec turn = hn::Set(d, lanes * kEach<T> * counter_step);
  const Vec key = hn::Set(d, key_hi);
  Vec sum_low = hn::Zero(d);
  Vec sum_high = hn::Zero(d);
  for (std::uint64_t v = 0; v < vectors; ++v) {
    const Vec words = hn::LoadU(d, reinterpret_cast<const std::uint64_t*>(bits + v * lanes * 8));
    AddPieces<T, kShift, 0>(words, counters, step, key, sum_low, sum_high);
    counters = hn::Add(counters, turn);
  }
  // Shifted by 32 bits more, the sum for the high halves of the weights.
  digest_add(sum, std::uint64_t{1} << kShift, hn::GetLane(hn::SumOfLanes(d, sum_low)));
  DigestSum high;
  digest_add(high, std::uint64_t{1} << kShift, hn::GetLane(hn::SumOfLanes(d, sum_high)));
  add_wide(sum, high.lo << 32, high.hi << 32 | high.lo >> 32);
  if constexpr (kShift + kPieceBits < 8 * sizeof(T)) {
    SumPieces<T, kShift + kPieceBits>(counter, counter_step, key_hi, bits, vectors, sum);
  }
}

template <class T>
std::uint64_t SumElementsOf(std::uint64_t counter, std::uint64_t counter_step, std::uint64_t key_hi,
                            const std::byte* bits, std::uint64_t count, DigestSum& sum) {
  const std::uint64_t each = hn::Lanes(Tag()) * kEach<T>;
  const std::uint64_t whole = count / each * each;
  for (std::uint64_t at = 0; at < whole; at += kChunk) {
    SumPieces<T, 0>(counter + at * counter_step, counter_step, key_hi, bits + at * sizeof(T),
                    std::min(kChunk, whole - at) / each, sum);
  }
  return whole;
}

#endif

std::uint64_t SumElements(std::uint64_t counter, std::uint64_t counter_step, std::uint64_t key_hi,
                          const std::byte* bits, std::uint64_t count, std::size_t element_bytes, DigestSum& sum) {
#if HWY_TARGET == HWY_SCALAR
  (void)counter, (void)counter_step, (void)key_hi, (void)bits, (void)count, (void)element_bytes, (void)sum;
  return 0;
#else
  return with_word(element_bytes,
                   [&]<class T>() { return SumElementsOf<T>(counter, counter_step, key_hi, bits, count, sum); });
#endif
}

}  // namespace sparsecast::cpu::HWY_NAMESPACE
// NOLINTEND(readability-identifier-naming)
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsecast::cpu {

HWY_EXPORT(SumElements);

std::uint64_t sum_elements(std::uint64_t counter, std::uint64_t counter_step, std::uint64_t key_hi,
                           const std::byte* bits, std::uint64_t count, std::size_t element_bytes, DigestSum& sum) {
  return HWY_DYNAMIC_DISPATCH(SumElements)(counter, counter_step, key_hi, bits, count, element_bytes, sum);
}

}  // namespace sparsecast::cpu
#endif  // HWY_ONCE
