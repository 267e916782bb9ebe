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

/// The piece that begins at bit `kShift` of the digest_word() of an element in each word.
template <class T, unsigned kShift>
HWY_INLINE Vec PieceOf(Vec elements) {
  const Vec pieces = hn::ShiftRight<kShift>(DigestWords<T>(elements));
  return kShift + kPieceBits < 8 * sizeof(T) ? hn::And(pieces, hn::Set(Tag(), (1U << kPieceBits) - 1)) : pieces;
}

/// Adds the products of weights and one piece of each element's word, which begins at bit `kShift`, from element
/// kElement of each word of memory on. `counters` are those of that element.
template <class T, unsigned kShift, unsigned kElement>
HWY_INLINE void AddPieces(Vec words, Vec counters, Vec step, Vec key_hi, Vec& sum_low, Vec& sum_high) {
  const Tag d;
  Vec elements = hn::ShiftRight<8 * sizeof(T) % 64 * kElement>(words);
  if (kElement + 1 < kEach<T>) elements = hn::And(elements, hn::Set(d, (std::uint64_t{1} << 8 * sizeof(T) % 64) - 1));
  const Vec pieces = PieceOf<T, kShift>(elements);
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

/// Elements in words of their own.
template <class T>
HWY_INLINE Vec LoadElements(const T* elements) {
  const hn::Rebind<std::uint32_t, Tag> d32;
  if constexpr (sizeof(T) == 8) {
    return hn::LoadU(Tag(), elements);
  } else if constexpr (sizeof(T) == 4) {
    return hn::PromoteTo(Tag(), hn::LoadU(d32, elements));
  } else {
    return hn::PromoteTo(Tag(), hn::PromoteTo(d32, hn::LoadU(hn::Rebind<T, Tag>(), elements)));
  }
}

/// Adds value * 2^shift, for a shift below 64.
void AddShifted(std::int64_t value, unsigned shift, DigestSum& sum) {
  const auto low = static_cast<std::uint64_t>(value);
  const std::int64_t high = shift == 0 ? value >> 63 : value >> (64 - shift);
  add_wide(sum, low << shift, static_cast<std::uint64_t>(high));
}

/// Adds the products of weights and the differences of one piece of the words of `count` changes, in whole vectors.
/// Differences are made positive by 2^kPieceBits: products then have 49 bits, which leaves room for kMostSummedChanges.
/// counters(i) loads those of the vector at change i.
template <class T, unsigned kShift, class Counters>
HWY_INLINE void SumChangedPieces(const Counters& counters, std::uint64_t key_hi, const T* before, const T* after,
                                 std::uint32_t count, DigestSum& sum) {
  const Tag d;
  const Vec key = hn::Set(d, key_hi);
  const Vec bias = hn::Set(d, std::uint64_t{1} << kPieceBits);
  const Vec low_half = hn::Set(d, 0xFFFFFFFFULL);
  Vec sum_low = hn::Zero(d);
  Vec sum_high = hn::Zero(d);
  Vec weights_low = hn::Zero(d);
  Vec weights_high = hn::Zero(d);
  for (std::uint32_t i = 0; i < count; i += static_cast<std::uint32_t>(hn::Lanes(d))) {
    const Vec weights = Weights(counters(i), key);
    const Vec old_pieces = PieceOf<T, kShift>(LoadElements(before + i));
    const Vec difference = hn::Sub(hn::Add(PieceOf<T, kShift>(LoadElements(after + i)), bias), old_pieces);
    sum_low = hn::Add(sum_low, MultiplyLow(weights, difference));
    sum_high = hn::Add(sum_high, MultiplyLow(SwapHalves(weights), difference));
    weights_low = hn::Add(weights_low, hn::And(weights, low_half));
    weights_high = hn::Add(weights_high, hn::ShiftRight<32>(weights));
  }
  const auto unbiased = [&](Vec products, Vec weights) HWY_ATTR {
    const Vec left = hn::Sub(products, hn::ShiftLeft<kPieceBits>(weights));
    return static_cast<std::int64_t>(hn::GetLane(hn::SumOfLanes(d, left)));
  };
  AddShifted(unbiased(sum_low, weights_low), kShift, sum);
  // Shifted by 32 bits more, the sum for the high halves of the weights.
  DigestSum high;
  AddShifted(unbiased(sum_high, weights_high), kShift, high);
  add_wide(sum, high.lo << 32, high.hi << 32 | high.lo >> 32);
  if constexpr (kShift + kPieceBits < 8 * sizeof(T)) {
    SumChangedPieces<T, kShift + kPieceBits>(counters, key_hi, before, after, count, sum);
  }
}

#endif

#if HWY_TARGET != HWY_SCALAR
/// Sums the whole vectors among the changes, and returns how many these are.
template <class Counters>
HWY_INLINE std::uint32_t SumChangesOf(const Counters& counters, std::uint64_t key_hi, const void* before,
                                      const void* after, std::uint32_t count, std::size_t element_bytes,
                                      DigestSum& sum) {
  const auto lanes = static_cast<std::uint32_t>(hn::Lanes(Tag()));
  const std::uint32_t whole = std::min(count, kMostSummedChanges) / lanes * lanes;
  if (whole == 0) return 0;
  with_word(element_bytes, [&]<class T>() HWY_ATTR {
    SumChangedPieces<T, 0>(counters, key_hi, static_cast<const T*>(before), static_cast<const T*>(after), whole, sum);
  });
  return whole;
}
#endif

std::uint32_t SumChanges(const std::uint64_t* counters, std::uint64_t key_hi, const void* before, const void* after,
                         std::uint32_t count, std::size_t element_bytes, DigestSum& sum) {
#if HWY_TARGET == HWY_SCALAR
  (void)counters, (void)key_hi, (void)before, (void)after, (void)count, (void)element_bytes, (void)sum;
  return 0;
#else
  const auto load = [&](std::uint32_t i) HWY_ATTR { return hn::LoadU(Tag(), counters + i); };
  return SumChangesOf(load, key_hi, before, after, count, element_bytes, sum);
#endif
}

std::uint32_t SumChangesAt(std::uint64_t counter, const std::uint32_t* offsets, std::uint64_t key_hi,
                           const void* before, const void* after, std::uint32_t count, std::size_t element_bytes,
                           DigestSum& sum) {
#if HWY_TARGET == HWY_SCALAR
  (void)counter, (void)offsets, (void)key_hi, (void)before, (void)after, (void)count, (void)element_bytes, (void)sum;
  return 0;
#else
  const Tag d;
  const Vec first = hn::Set(d, counter);
  const Vec step_low = hn::Set(d, kDigestStep & 0xFFFFFFFFULL);
  const Vec step_high = hn::Set(d, kDigestStep >> 32);
  const auto load = [&](std::uint32_t i) HWY_ATTR {
    const Vec at = LoadElements(offsets + i);
    const Vec high = hn::ShiftLeft<32>(MultiplyLow(at, step_high));
    return hn::Add(hn::Add(first, high), MultiplyLow(at, step_low));
  };
  return SumChangesOf(load, key_hi, before, after, count, element_bytes, sum);
#endif
}

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
HWY_EXPORT(SumChanges);
HWY_EXPORT(SumChangesAt);

std::uint64_t sum_elements(std::uint64_t counter, std::uint64_t counter_step, std::uint64_t key_hi,
                           const std::byte* bits, std::uint64_t count, std::size_t element_bytes, DigestSum& sum) {
  return HWY_DYNAMIC_DISPATCH(SumElements)(counter, counter_step, key_hi, bits, count, element_bytes, sum);
}

std::uint32_t sum_changes(const std::uint64_t* counters, std::uint64_t key_hi, const void* before, const void* after,
                          std::uint32_t count, std::size_t element_bytes, DigestSum& sum) {
  return HWY_DYNAMIC_DISPATCH(SumChanges)(counters, key_hi, before, after, count, element_bytes, sum);
}

std::uint32_t sum_changes_at(std::uint64_t counter, const std::uint32_t* offsets, std::uint64_t key_hi,
                             const void* before, const void* after, std::uint32_t count, std::size_t element_bytes,
                             DigestSum& sum) {
  return HWY_DYNAMIC_DISPATCH(SumChangesAt)(counter, offsets, key_hi, before, after, count, element_bytes, sum);
}

}  // namespace sparsecast::cpu
#endif  // HWY_ONCE
