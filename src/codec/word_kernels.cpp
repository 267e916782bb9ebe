// SPDX-License-Identifier: Apache-2.0
#include "codec/word_kernels.hpp"

#include <cstring>

#include "codec/codec_common.hpp"
#include "core/word.hpp"

// The instruction set that compresses vectors of small words.
#ifndef HWY_WANT_AVX3_DL
#define HWY_WANT_AVX3_DL
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/word_kernels.cpp"
#include <hwy/foreach_target.h>  // Compiles this file once for each instruction set.
//
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
// Capitals, as Highway has them: the functions that call these have the same words.
// NOLINTBEGIN(readability-identifier-naming)
namespace sparsecast::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Returns ordered() of a vector's bits: a float's bits are inverted, all of them or only the sign.
template <class D, class V>
HWY_INLINE V Ordered(D d, V bits, V if_negative, V if_positive) {
  using T = hn::TFromD<D>;
  const auto sign = hn::Set(d, static_cast<T>(T{1} << (8 * sizeof(T) - 1)));
  const auto negative = hn::Ne(hn::And(bits, sign), hn::Zero(d));
  return hn::Xor(bits, hn::IfThenElse(negative, if_negative, if_positive));
}

/// Writes bit number `at` of a bitmap, after those before it.
HWY_INLINE void PutBit(bool bit, std::uint32_t at, std::byte* bitmap) {
  if (at % 8 == 0) bitmap[at / 8] = std::byte{0};
  bitmap[at / 8] |= static_cast<std::byte>(unsigned{bit} << at % 8);
}

/// Writes a vector's mask to a bitmap from bit number `at` on, a multiple of the number of lanes.
template <class D, class M>
HWY_INLINE void PutMask(D d, M mask, std::uint32_t at, std::byte* bitmap) {
  if (hn::Lanes(d) >= 8) {
    hn::StoreMaskBits(d, mask, reinterpret_cast<std::uint8_t*>(bitmap) + at / 8);
    return;
  }
  std::uint8_t bits[8];
  hn::StoreMaskBits(d, mask, bits);
  for (std::uint32_t lane = 0; lane < hn::Lanes(d); ++lane) PutBit((bits[0] >> lane & 1) != 0, at + lane, bitmap);
}

/// Steps of both halves of bytes, from old to new bits.
template <class D, class V>
HWY_INLINE V StepsOfHalves(D d, V new_bits, V old_bits, bool floating) {
  const auto high = hn::Set(d, 0x88);
  const auto ordered_halves = [&](V bits) HWY_ATTR {
    const auto negative = hn::And(bits, high);
    return hn::Xor(bits, hn::Or(high, hn::Sub(negative, hn::ShiftRight<3>(negative))));
  };
  const auto to = floating ? ordered_halves(new_bits) : new_bits;
  const auto from = floating ? ordered_halves(old_bits) : old_bits;
  return hn::Xor(hn::Sub(hn::Or(to, high), hn::AndNot(high, from)), hn::AndNot(hn::Xor(to, from), high));
}

template <class T>
std::uint32_t CodeChangedWords(const std::byte* current, const std::byte* old, std::uint32_t count, ValueCodec values,
                               UlpOrder order, T* coded, T* before, T* after, std::byte* bitmap) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::uint32_t>(hn::Lanes(d));
  const auto* a = reinterpret_cast<const T*>(current);
  const auto* b = reinterpret_cast<const T*>(old);
  const bool pairs = values == ValueCodec::kUlp && is_pair(order);
  const bool floating = order == UlpOrder::kFloat;
  const auto if_negative = hn::Set(d, static_cast<T>(floating ? ~T{0} : T{0}));
  const auto if_positive = hn::Set(d, static_cast<T>(floating ? T{1} << (8 * sizeof(T) - 1) : T{0}));
  std::uint32_t n = 0;
  std::uint32_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto new_bits = hn::LoadU(d, a + i);
    const auto old_bits = hn::LoadU(d, b + i);
    const auto changed = hn::Ne(new_bits, old_bits);
    auto word = new_bits;
    if (values == ValueCodec::kXor) word = hn::Xor(new_bits, old_bits);
    if (pairs) {
      if constexpr (sizeof(T) == 1) word = StepsOfHalves(d, new_bits, old_bits, order == UlpOrder::kFloatPair);
    } else if (values == ValueCodec::kUlp) {
      word = hn::Sub(Ordered(d, new_bits, if_negative, if_positive), Ordered(d, old_bits, if_negative, if_positive));
    }
    hn::StoreU(hn::Compress(word, changed), d, coded + n);
    if (before != nullptr) {
      hn::StoreU(hn::Compress(old_bits, changed), d, before + n);
      hn::StoreU(hn::Compress(new_bits, changed), d, after + n);
    }
    if (bitmap != nullptr) PutMask(d, changed, i, bitmap);
    n += static_cast<std::uint32_t>(hn::CountTrue(d, changed));
  }
  for (std::uint32_t k = 0; pairs && k < n; ++k) coded[k] = pair_code(static_cast<std::uint8_t>(coded[k]));
  for (; i < count; ++i) {
    const T new_bits = load_word<T>(current, i);
    const T old_bits = load_word<T>(old, i);
    if (bitmap != nullptr) PutBit(new_bits != old_bits, i, bitmap);
    if (new_bits == old_bits) continue;
    coded[n] = values == ValueCodec::kUlp   ? ulp_difference(new_bits, old_bits, order)
               : values == ValueCodec::kXor ? static_cast<T>(new_bits ^ old_bits)
                                            : new_bits;
    if (before != nullptr) {
      before[n] = old_bits;
      after[n] = new_bits;
    }
    ++n;
  }
  return n;
}

/// changed_bits() (codec_common.hpp) of a vector of elements.
template <class D, class V>
HWY_INLINE V Advanced(D d, V old_bits, V word, ValueCodec values, bool floating, bool inverse) {
  using T = hn::TFromD<D>;
  constexpr T kSign = static_cast<T>(T{1} << (8 * sizeof(T) - 1));
  if (values == ValueCodec::kRaw) return word;
  if (values == ValueCodec::kXor) return hn::Xor(old_bits, word);
  const auto all_of_float = hn::Set(d, static_cast<T>(floating ? ~T{0} : T{0}));
  const auto sign_of_float = hn::Set(d, floating ? kSign : T{0});
  const auto ordered_bits = Ordered(d, old_bits, all_of_float, sign_of_float);
  const auto moved = inverse ? hn::Sub(ordered_bits, word) : hn::Add(ordered_bits, word);
  return Ordered(d, moved, sign_of_float, all_of_float);
}

template <class T>
void AdvanceWordsOf(const T* before, const T* coded, std::uint32_t count, ValueCodec values, UlpOrder order,
                    bool inverse, T* after) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::uint32_t>(hn::Lanes(d));
  const bool floating = order == UlpOrder::kFloat;
  // The steps of pairs are looked up one by one.
  const bool one_by_one = values == ValueCodec::kUlp && is_pair(order);
  std::uint32_t i = 0;
  for (; !one_by_one && i + lanes <= count; i += lanes) {
    const auto old_bits = hn::LoadU(d, before + i);
    hn::StoreU(Advanced(d, old_bits, hn::LoadU(d, coded + i), values, floating, inverse), d, after + i);
  }
  for (; i < count; ++i) after[i] = changed_bits(before[i], coded[i], values, order, inverse);
}

void AdvanceWords(const void* before, const void* coded, std::uint32_t count, std::size_t element_bytes,
                  ValueCodec values, UlpOrder order, bool inverse, void* after) {
  with_word(element_bytes, [&]<class T>() HWY_ATTR {
    AdvanceWordsOf(static_cast<const T*>(before), static_cast<const T*>(coded), count, values, order, inverse,
                   static_cast<T*>(after));
  });
}

/// The lanes of a vector that are set in a bitmap from bit number `at` on, a multiple of their number.
template <class D>
HWY_INLINE hn::Mask<D> MaskAt(D d, const std::byte* bitmap, std::uint32_t at) {
  // Eight bytes are loaded, which may lie beyond the end of the bitmap.
  std::uint64_t bits = 0;
  std::memcpy(&bits, bitmap + at / 8, (hn::Lanes(d) + 7) / 8);
  bits >>= at % 8;
  return hn::LoadMaskBits(d, reinterpret_cast<const std::uint8_t*>(&bits));
}

template <class T>
std::uint32_t GatherMarkedWords(const std::byte* words, const std::byte* bitmap, std::uint32_t count, T* out) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::uint32_t>(hn::Lanes(d));
  std::uint32_t n = 0;
  std::uint32_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto marked = MaskAt(d, bitmap, i);
    hn::StoreU(hn::Compress(hn::LoadU(d, reinterpret_cast<const T*>(words) + i), marked), d, out + n);
    n += static_cast<std::uint32_t>(hn::CountTrue(d, marked));
  }
  for (; i < count; ++i) {
    if ((static_cast<unsigned>(bitmap[i / 8]) >> i % 8 & 1) != 0) out[n++] = load_word<T>(words, i);
  }
  return n;
}

std::uint32_t GatherMarked(const std::byte* words, const std::byte* bitmap, std::uint32_t count,
                           std::size_t element_bytes, void* out) {
  return with_word(element_bytes,
                   [&]<class T>() HWY_ATTR { return GatherMarkedWords(words, bitmap, count, static_cast<T*>(out)); });
}

std::uint32_t CodeChanged(const std::byte* current, const std::byte* old, std::uint32_t count,
                          std::size_t element_bytes, ValueCodec values, UlpOrder order, void* coded, void* before,
                          void* after, std::byte* bitmap) {
  return with_word(element_bytes, [&]<class T>() {
    return CodeChangedWords(current, old, count, values, order, static_cast<T*>(coded), static_cast<T*>(before),
                            static_cast<T*>(after), bitmap);
  });
}

}  // namespace sparsecast::cpu::HWY_NAMESPACE
// NOLINTEND(readability-identifier-naming)
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsecast::cpu {

HWY_EXPORT(CodeChanged);
HWY_EXPORT(AdvanceWords);
HWY_EXPORT(GatherMarked);

std::uint32_t code_changed(const std::byte* current, const std::byte* old, std::uint32_t count,
                           std::size_t element_bytes, ValueCodec values, UlpOrder order, void* coded, void* before,
                           void* after, std::byte* bitmap) {
  return HWY_DYNAMIC_DISPATCH(CodeChanged)(current, old, count, element_bytes, values, order, coded, before, after,
                                           bitmap);
}

void advance_words(const void* before, const void* coded, std::uint32_t count, std::size_t element_bytes,
                   ValueCodec values, UlpOrder order, bool inverse, void* after) {
  HWY_DYNAMIC_DISPATCH(AdvanceWords)(before, coded, count, element_bytes, values, order, inverse, after);
}

std::uint32_t gather_marked(const std::byte* words, const std::byte* bitmap, std::uint32_t count,
                            std::size_t element_bytes, void* out) {
  return HWY_DYNAMIC_DISPATCH(GatherMarked)(words, bitmap, count, element_bytes, out);
}

}  // namespace sparsecast::cpu
#endif  // HWY_ONCE
