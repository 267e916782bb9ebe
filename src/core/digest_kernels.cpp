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

/// Both halves of digest_weight() of the elements with these counters, each in the low half of a word; the upper half
/// is undefined, and MultiplyLow() does not read it.
HWY_INLINE void WeightHalves(Vec counters, Vec key_hi, Vec& low, Vec& high) {
  const Tag d;
  const Vec first = hn::Xor3(MultiplyLow(counters, hn::Set(d, kDigestRound1)), counters, key_hi);
  const Vec second = MultiplyLow(hn::ShiftRight<32>(first), hn::Set(d, kDigestRound2));
  const Vec third = MultiplyLow(hn::Xor(hn::ShiftRight<32>(second), first), hn::Set(d, kDigestRound3));
  low = hn::Or(third, hn::Set(d, 1));
  high = hn::Xor(hn::ShiftRight<32>(third), second);
}

/// Number of elements in a word of memory. The factors of the weights (digest_word) are summed in pieces of at most 16
/// bits, two pieces at a time.
template <class T>
constexpr unsigned kEach = 8 / sizeof(T);
constexpr unsigned kPieceBits = 16;
template <class T>
constexpr bool kTwoPieces = sizeof(T) >= 4;

/// Returns u (u + 1) / 2 modulo 2^32 in the low half of each word u of 32 bits; the upper half is undefined.
HWY_INLINE Vec Triangles(Vec words) { return hn::ShiftRight<1>(hn::Add(MultiplyLow(words, words), words)); }

/// Returns u (u + 1) / 2 modulo 2^16 of the 16-bit numbers u: the product of u and u + 1 after the even one of them is
/// halved.
template <class Vec16>
HWY_INLINE Vec16 ShortTriangles(Vec16 words) {
  const hn::DFromV<Vec16> d;
  return hn::Mul(hn::Or(words, hn::Set(d, 1)), hn::AverageRound(words, hn::Zero(d)));
}

/// Returns bits 32 * kHalf to 32 * kHalf + 31 of the digest_word() of an element of 4 or 8 bytes in each word, which
/// has no other bits. The bits above are undefined.
template <class T, unsigned kHalf>
HWY_INLINE Vec WordHalves(Vec elements) {
  if constexpr (kHalf == 1) return hn::ShiftRight<32>(elements);
  if constexpr (sizeof(T) == 4) return Triangles(elements);
  const Vec sum = hn::Add(elements, SwapHalves(elements));
  return Triangles(hn::And(sum, hn::Set(Tag(), 0xFFFFFFFFULL)));
}

/// The two pieces of the low half of each word, in words whose upper half is undefined.
HWY_INLINE Vec LowPieces(Vec halves) { return hn::And(halves, hn::Set(Tag(), (1U << kPieceBits) - 1)); }
HWY_INLINE Vec HighPieces(Vec halves) {
  return hn::BitCast(Tag(), hn::ShiftRight<kPieceBits>(hn::BitCast(HalfTag(), halves)));
}

/// Adds the products of the halves of weights and pieces, each in the low half of a word.
HWY_INLINE void AddProducts(Vec weights_low, Vec weights_high, Vec pieces, Vec& sum_low, Vec& sum_high) {
  sum_low = hn::Add(sum_low, MultiplyLow(weights_low, pieces));
  sum_high = hn::Add(sum_high, MultiplyLow(weights_high, pieces));
}

/// Adds the products of words of one piece each with the weights of their counters.
HWY_INLINE void AddPieces(Vec pieces, Vec counters, Vec key_hi, Vec& sum_low, Vec& sum_high) {
  Vec weights_low;
  Vec weights_high;
  WeightHalves(counters, key_hi, weights_low, weights_high);
  AddProducts(weights_low, weights_high, pieces, sum_low, sum_high);
}

/// Adds the products of words of four pieces of 16 bits each; the counters of a word's pieces differ by `step`.
HWY_INLINE void AddFourPieces(Vec words, Vec counters, Vec step, Vec key_hi, Vec& sum_low, Vec& sum_high) {
  const HalfTag halves;
  const Vec even = hn::BitCast(Tag(), hn::And(hn::BitCast(halves, words), hn::Set(halves, 0xFFFF)));
  const Vec odd = hn::BitCast(Tag(), hn::ShiftRight<16>(hn::BitCast(halves, words)));
  AddPieces(even, counters, key_hi, sum_low, sum_high);
  counters = hn::Add(counters, step);
  AddPieces(odd, counters, key_hi, sum_low, sum_high);
  counters = hn::Add(counters, step);
  AddPieces(hn::ShiftRight<32>(even), counters, key_hi, sum_low, sum_high);
  counters = hn::Add(counters, step);
  AddPieces(hn::ShiftRight<32>(odd), counters, key_hi, sum_low, sum_high);
}

/// Adds the sums of products of the low and the high halves of weights with pieces that begin at bit `shift`.
void AddSums(Vec sum_low, Vec sum_high, unsigned shift, DigestSum& sum) {
  const Tag d;
  digest_add(sum, std::uint64_t{1} << shift, hn::GetLane(hn::SumOfLanes(d, sum_low)));
  // Shifted by 32 bits more.
  DigestSum high;
  digest_add(high, std::uint64_t{1} << shift, hn::GetLane(hn::SumOfLanes(d, sum_high)));
  add_wide(sum, high.lo << 32, high.hi << 32 | high.lo >> 32);
}

/// Adds the halves `kHalf` of the words of `count` whole vectors of elements; those of fewer than 8 bytes have one.
template <class T, unsigned kHalf>
void SumHalves(std::uint64_t counter, std::uint64_t counter_step, std::uint64_t key_hi, const std::byte* bits,
               std::uint64_t vectors, DigestSum& sum) {
  const Tag d;
  const hn::Repartition<std::uint16_t, Tag> d16;
  const std::size_t lanes = hn::Lanes(d);
  HWY_ALIGN std::uint64_t numbers[HWY_MAX_BYTES / 8];
  for (std::size_t lane = 0; lane < lanes; ++lane) numbers[lane] = counter + lane * kEach<T> * counter_step;
  Vec counters = hn::Load(d, numbers);
  const Vec step = hn::Set(d, counter_step);
  const Vec two_steps = hn::Set(d, 2 * counter_step);
  const Vec turn = hn::Set(d, lanes * kEach<T> * counter_step);
  const Vec key = hn::Set(d, key_hi);
  Vec first_low = hn::Zero(d);
  Vec first_high = hn::Zero(d);
  Vec second_low = hn::Zero(d);
  Vec second_high = hn::Zero(d);
  const auto add_element = [&](Vec element, Vec counter_of_element) HWY_ATTR {
    Vec weights_low;
    Vec weights_high;
    WeightHalves(counter_of_element, key, weights_low, weights_high);
    const Vec halves = WordHalves<T, kHalf>(element);
    AddProducts(weights_low, weights_high, LowPieces(halves), first_low, first_high);
    AddProducts(weights_low, weights_high, HighPieces(halves), second_low, second_high);
  };
  for (std::uint64_t v = 0; v < vectors; ++v) {
    const Vec words = hn::LoadU(d, reinterpret_cast<const std::uint64_t*>(bits + v * lanes * 8));
    const auto shorts = hn::BitCast(d16, words);
    if constexpr (sizeof(T) == 1) {
      const auto low_byte = hn::Set(d16, 0xFF);
      const auto even = hn::And(ShortTriangles(hn::And(shorts, low_byte)), low_byte);
      const auto odd = hn::And(ShortTriangles(hn::ShiftRight<8>(shorts)), low_byte);
      AddFourPieces(hn::BitCast(d, even), counters, two_steps, key, first_low, first_high);
      AddFourPieces(hn::BitCast(d, odd), hn::Add(counters, step), two_steps, key, first_low, first_high);
    } else if constexpr (sizeof(T) == 2) {
      AddFourPieces(hn::BitCast(d, ShortTriangles(shorts)), counters, step, key, first_low, first_high);
    } else if constexpr (sizeof(T) == 4) {
      add_element(hn::And(words, hn::Set(d, 0xFFFFFFFFULL)), counters);
      add_element(hn::ShiftRight<32>(words), hn::Add(counters, step));
    } else {
      add_element(words, counters);
    }
    counters = hn::Add(counters, turn);
  }
  AddSums(first_low, first_high, 32 * kHalf, sum);
  if (kTwoPieces<T>) AddSums(second_low, second_high, 32 * kHalf + kPieceBits, sum);
}

template <class T>
std::uint64_t SumElementsOf(std::uint64_t counter, std::uint64_t counter_step, std::uint64_t key_hi,
                            const std::byte* bits, std::uint64_t count, DigestSum& sum) {
  const std::uint64_t each = hn::Lanes(Tag()) * kEach<T>;
  const std::uint64_t whole = count / each * each;
  for (std::uint64_t at = 0; at < whole; at += kChunk) {
    const std::uint64_t first = counter + at * counter_step;
    const std::byte* const chunk = bits + at * sizeof(T);
    const std::uint64_t vectors = std::min(kChunk, whole - at) / each;
    SumHalves<T, 0>(first, counter_step, key_hi, chunk, vectors, sum);
    if constexpr (sizeof(T) == 8) SumHalves<T, 1>(first, counter_step, key_hi, chunk, vectors, sum);
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

/// Returns the piece from bit `kShift` on of the digest_word() of an element in each word, which has no other bits; the
/// words have no others either.
template <class T, unsigned kShift>
HWY_INLINE Vec PieceOf(Vec elements) {
  if constexpr (sizeof(T) < 4) {
    return hn::And(Triangles(elements), hn::Set(Tag(), (1U << 8 * sizeof(T)) - 1));
  } else {
    const Vec halves = WordHalves<T, kShift / 32>(elements);
    return LowPieces(kShift % 32 == 0 ? halves : HighPieces(halves));
  }
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
    Vec low;
    Vec high;
    WeightHalves(counters(i), key, low, high);
    const Vec old_pieces = PieceOf<T, kShift>(LoadElements(before + i));
    const Vec difference = hn::Sub(hn::Add(PieceOf<T, kShift>(LoadElements(after + i)), bias), old_pieces);
    AddProducts(low, high, difference, sum_low, sum_high);
    weights_low = hn::Add(weights_low, hn::And(low, low_half));
    weights_high = hn::Add(weights_high, hn::And(high, low_half));
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
