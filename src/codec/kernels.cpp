// SPDX-License-Identifier: Apache-2.0
#include "codec/kernels.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "codec/codec_common.hpp"
#include "core/word.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/kernels.cpp"
#include <hwy/foreach_target.h>  // Compiles this file once for each instruction set.
//
#include <hwy/highway.h>

#include "codec/expand-inl.hpp"

HWY_BEFORE_NAMESPACE();
// Capitals, as Highway has them: the functions that call these have the same words.
// NOLINTBEGIN(readability-identifier-naming)
namespace sparsecast::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Elements compared before their positions are written. Short turns keep the hardware's prefetch of the arrays going
/// while positions are written, and the mask in registers or the nearest cache.
constexpr std::uint32_t kTurn = 512;
constexpr std::uint32_t kTurnWords = kTurn / 64;

/// Change mask of up to kTurn elements, filled vector by vector, then element by element.
template <class D>
class TurnMask {
 public:
  explicit TurnMask(D d) : d_(d) {}

  HWY_INLINE void Put(hn::Mask<D> mask) {
    if (kWholeBytes && hn::Lanes(d_) >= 8) {
      // Stored in place directly: a detour through a word would wait for the store. May write 8 bytes.
      hn::StoreMaskBits(d_, mask, reinterpret_cast<std::uint8_t*>(words_) + done_ / 8);
      done_ += hn::Lanes(d_);
      return;
    }
    alignas(8) std::uint8_t bits[8] = {};
    hn::StoreMaskBits(d_, mask, bits);
    for (std::size_t lane = 0; lane < hn::Lanes(d_); ++lane) PutBit((bits[0] >> lane & 1) != 0);
  }
  void PutBit(bool bit) {
    ClearFrom(done_);
    words_[done_ / 64] |= std::uint64_t{bit} << (done_ % 64);
    ++done_;
  }
  /// Returns the mask collected so far, padded with zeros to whole words, and resets it.
  const std::uint64_t* Take() {
    ClearFrom(done_);
    done_ = 0;
    return words_;
  }
  HWY_INLINE std::uint32_t* Positions(std::uint32_t first, std::uint32_t* positions) {
    ClearFrom(done_);
    positions = Expand(words_, static_cast<std::uint32_t>((done_ + 63) / 64), first, positions);
    done_ = 0;
    return positions;
  }

 private:
  static constexpr bool kWholeBytes = HWY_MAX_BYTES / sizeof(hn::TFromD<D>) >= 8;

  /// Clears the bits from `at` on in the word of bit `at`, which have not been written.
  void ClearFrom(std::size_t at) { words_[at / 64] &= (std::uint64_t{1} << (at % 64)) - 1; }

  D d_;
  std::uint64_t words_[kTurnWords + 1] = {};
  std::size_t done_ = 0;
};

/// Where more than one in kBusy elements changed, coding them takes so long that the hardware's prefetch of the next
/// elements to compare falls behind.
constexpr std::size_t kBusy = 50;

/// Prefetches the part of an array after the next one. All parts are `bytes` long, like the one at `part`.
HWY_INLINE void PrefetchPart(const std::byte* part, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  for (std::size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(part + 2 * bytes + at);
}

template <class T>
std::uint32_t CompareWords(const std::byte* current, const std::byte* old, std::uint32_t count,
                           std::uint32_t* positions) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  const T* a = reinterpret_cast<const T*>(current);
  const T* b = reinterpret_cast<const T*>(old);
  TurnMask<decltype(d)> mask(d);
  std::uint32_t* out = positions;
  for (std::uint32_t first = 0; first < count; first += kTurn) {
    const std::uint32_t end = std::min(count, first + kTurn);
    std::size_t i = first;
    for (; i + lanes <= end; i += lanes) mask.Put(hn::Ne(hn::LoadU(d, a + i), hn::LoadU(d, b + i)));
    for (; i < end; ++i) mask.PutBit(load_word<T>(current, i) != load_word<T>(old, i));
    out = mask.Positions(first, out);
  }
  if (static_cast<std::size_t>(out - positions) * kBusy > count) {
    PrefetchPart(current, count * sizeof(T));
    PrefetchPart(old, count * sizeof(T));
  }
  return static_cast<std::uint32_t>(out - positions);
}

std::uint32_t CompareTile(const std::byte* current, const std::byte* old, std::uint32_t count,
                          std::size_t element_bytes, std::uint32_t* positions) {
  switch (element_bytes) {
    case 1:
      return CompareWords<std::uint8_t>(current, old, count, positions);
    case 2:
      return CompareWords<std::uint16_t>(current, old, count, positions);
    case 4:
      return CompareWords<std::uint32_t>(current, old, count, positions);
    default:
      return CompareWords<std::uint64_t>(current, old, count, positions);
  }
}

template <bool kKeep>
std::uint32_t CastWords(const std::byte* master, std::uint32_t count, const std::byte* old, std::byte* cast,
                        std::byte* kept, std::uint32_t* positions) {
  const hn::ScalableTag<std::uint32_t> d32;
  const hn::Rebind<std::uint16_t, decltype(d32)> d16;
  const std::size_t lanes = hn::Lanes(d32);
  const auto* bits = reinterpret_cast<const std::uint32_t*>(master);
  const auto* old_words = reinterpret_cast<const std::uint16_t*>(old);
  auto* cast_words = reinterpret_cast<std::uint16_t*>(cast);
  const auto magnitude_mask = hn::Set(d32, 0x7FFFFFFFU);
  const auto infinity = hn::Set(d32, 0x7F800000U);
  const auto quiet = hn::Set(d32, 0x00400000U);
  const auto half = hn::Set(d32, 0x7FFFU);
  const auto one = hn::Set(d32, 1U);
  TurnMask<decltype(d16)> mask(d16);
  std::uint32_t* out = positions;
  for (std::uint32_t first = 0; first < count; first += kTurn) {
    const std::uint32_t end = std::min(count, first + kTurn);
    std::size_t i = first;
    for (; i + lanes <= end; i += lanes) {
      const auto f = hn::LoadU(d32, bits + i);
      const auto is_nan = hn::Gt(hn::And(f, magnitude_mask), infinity);
      const auto rounded = hn::Add(hn::Add(f, half), hn::And(hn::ShiftRight<16>(f), one));
      const auto chosen = hn::IfThenElse(is_nan, hn::Or(f, quiet), rounded);
      const auto new_bits = hn::TruncateTo(d16, hn::ShiftRight<16>(chosen));
      const auto old_bits = hn::LoadU(d16, old_words + i);
      if constexpr (kKeep) hn::StoreU(old_bits, d16, reinterpret_cast<std::uint16_t*>(kept) + i);
      hn::StoreU(new_bits, d16, cast_words + i);
      mask.Put(hn::Ne(new_bits, old_bits));
    }
    for (; i < end; ++i) {
      const auto old_bits = load_word<std::uint16_t>(old, i);
      const std::uint16_t new_bits = bf16_from_f32_bits(load_word<std::uint32_t>(master, i));
      if constexpr (kKeep) store_word(kept, i, old_bits);
      store_word(cast, i, new_bits);
      mask.PutBit(new_bits != old_bits);
    }
    out = mask.Positions(first, out);
  }
  return static_cast<std::uint32_t>(out - positions);
}

std::uint32_t CastTile(const std::byte* master, std::uint32_t count, const std::byte* old, std::byte* cast,
                       std::byte* kept, std::uint32_t* positions) {
  return kept != nullptr ? CastWords<true>(master, count, old, cast, kept, positions)
                         : CastWords<false>(master, count, old, cast, kept, positions);
}

template <class T>
void SignBits(const std::byte* coded, std::uint32_t count, std::byte* out) {
  const hn::ScalableTag<T> d;
  const hn::RebindToSigned<decltype(d)> signed_d;
  const std::size_t lanes = hn::Lanes(d);
  const T* words = reinterpret_cast<const T*>(coded);
  TurnMask<decltype(signed_d)> mask(signed_d);
  for (std::uint32_t first = 0; first < count; first += kTurn) {
    const std::uint32_t end = std::min(count, first + kTurn);
    std::size_t i = first;
    for (; i + lanes <= end; i += lanes) {
      mask.Put(hn::Lt(hn::BitCast(signed_d, hn::LoadU(d, words + i)), hn::Zero(signed_d)));
    }
    for (; i < end; ++i) mask.PutBit((words[i] >> (8 * sizeof(T) - 1)) != 0);
    std::memcpy(out + first / 8, mask.Take(), (end - first + 63) / 64 * 8);
  }
}

template <class T>
std::uint32_t LeastLowBits(const std::byte* coded, std::uint32_t count, std::uint32_t most) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::uint32_t>(hn::Lanes(d));
  constexpr std::uint32_t kMostBits = 8 * sizeof(T) - 1;
  const T* words = reinterpret_cast<const T*>(coded);
  for (std::uint32_t bits = 0; bits < kMostBits; ++bits) {
    // Words of such magnitudes are within 2^bits of 0; 0 itself does not occur.
    const T around = static_cast<T>(T{1} << bits);
    const T width = static_cast<T>(around + around);
    const auto from = hn::Set(d, around);
    const auto to = hn::Set(d, width);
    std::uint32_t above = 0;
    std::uint32_t i = 0;
    for (; i + lanes <= count; i += lanes) {
      above += static_cast<std::uint32_t>(hn::CountTrue(d, hn::Gt(hn::Add(hn::LoadU(d, words + i), from), to)));
    }
    for (; i < count; ++i) above += static_cast<T>(words[i] + around) > width ? 1 : 0;
    if (above <= most) return bits;
  }
  return kMostBits;
}

template <class T>
std::uint32_t FindExceptions(const std::byte* coded, std::uint32_t count, std::uint32_t low_bits,
                             std::uint32_t* indices) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  const T* words = reinterpret_cast<const T*>(coded);
  // A magnitude m has m >> low_bits != 0 exactly when m exceeds this mask. The code compares by a mask because
  // not every instruction set shifts bytes.
  const T low_mask = static_cast<T>((std::uint64_t{1} << low_bits) - 1);
  const auto high = hn::Set(d, static_cast<T>(~low_mask));
  const auto one = hn::Set(d, T{1});
  const auto sign = hn::Set(d, static_cast<T>(T{1} << (8 * sizeof(T) - 1)));
  const auto zero = hn::Zero(d);
  TurnMask<decltype(d)> mask(d);
  std::uint32_t* out = indices;
  for (std::uint32_t first = 0; first < count; first += kTurn) {
    const std::uint32_t end = std::min(count, first + kTurn);
    std::size_t i = first;
    for (; i + lanes <= end; i += lanes) {
      const auto word = hn::LoadU(d, words + i);
      const auto down = hn::Ne(hn::And(word, sign), zero);
      const auto magnitude = hn::IfThenElse(down, hn::Not(word), hn::Sub(word, one));
      mask.Put(hn::Ne(hn::And(magnitude, high), zero));
    }
    for (; i < end; ++i) mask.PutBit((ulp_magnitude(words[i]) & static_cast<T>(~low_mask)) != 0);
    out = mask.Positions(first, out);
  }
  return static_cast<std::uint32_t>(out - indices);
}

std::uint32_t QuotientBits(const std::uint32_t* gaps, std::uint32_t count, std::uint32_t kp) {
  const hn::ScalableTag<std::uint32_t> d;
  const hn::RebindToSigned<decltype(d)> signed_d;
  const hn::RebindToFloat<decltype(d)> float_d;
  const std::size_t lanes = hn::Lanes(d);
  const auto escape = hn::Set(d, kEscape);
  const auto below = hn::Set(d, kEscape - 1);
  const auto bias = hn::Set(d, 127U);
  auto sum = hn::Zero(d);
  std::uint32_t i = 0;
  for (; i + lanes <= count; i += static_cast<std::uint32_t>(lanes)) {
    const auto quotient = hn::ShiftRightSame(hn::LoadU(d, gaps + i), static_cast<int>(kp));
    // The exponent of a float is the place of the highest bit; quotients are exact in its 24 bits.
    const auto real = hn::ConvertTo(float_d, hn::BitCast(signed_d, hn::Sub(quotient, below)));
    const auto tail = hn::Sub(hn::ShiftRight<23>(hn::BitCast(d, real)), bias);
    const auto escaped = hn::Add(escape, hn::Add(tail, tail));
    sum = hn::Add(sum, hn::IfThenElse(hn::Lt(quotient, escape), quotient, escaped));
  }
  auto total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < count; ++i) {
    const std::uint32_t quotient = gaps[i] >> kp;
    total += quotient_zeros(quotient) + quotient_tail_bits(quotient);
  }
  return total;
}

void SignBitsAny(const std::byte* coded, std::uint32_t count, std::size_t element_bytes, std::byte* out) {
  switch (element_bytes) {
    case 1:
      return SignBits<std::uint8_t>(coded, count, out);
    case 2:
      return SignBits<std::uint16_t>(coded, count, out);
    case 4:
      return SignBits<std::uint32_t>(coded, count, out);
    default:
      return SignBits<std::uint64_t>(coded, count, out);
  }
}

std::uint32_t FindExceptionsAny(const std::byte* coded, std::uint32_t count, std::size_t element_bytes,
                                std::uint32_t low_bits, std::uint32_t* indices) {
  switch (element_bytes) {
    case 1:
      return FindExceptions<std::uint8_t>(coded, count, low_bits, indices);
    case 2:
      return FindExceptions<std::uint16_t>(coded, count, low_bits, indices);
    case 4:
      return FindExceptions<std::uint32_t>(coded, count, low_bits, indices);
    default:
      return FindExceptions<std::uint64_t>(coded, count, low_bits, indices);
  }
}

std::uint32_t LeastLowBitsAny(const std::byte* coded, std::uint32_t count, std::size_t element_bytes,
                              std::uint32_t most) {
  return with_word(element_bytes, [&]<class T>() { return LeastLowBits<T>(coded, count, most); });
}

std::uint32_t ExpandTile(const std::uint64_t* mask, std::uint32_t count, std::uint32_t* positions) {
  return static_cast<std::uint32_t>(Expand(mask, (count + 63) / 64, 0, positions) - positions);
}

}  // namespace sparsecast::cpu::HWY_NAMESPACE
// NOLINTEND(readability-identifier-naming)
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsecast::cpu {

HWY_EXPORT(CompareTile);
HWY_EXPORT(CastTile);
HWY_EXPORT(ExpandTile);
HWY_EXPORT(QuotientBits);
HWY_EXPORT(SignBitsAny);
HWY_EXPORT(FindExceptionsAny);
HWY_EXPORT(LeastLowBitsAny);

std::uint32_t compare_tile(const std::byte* current, const std::byte* old, std::uint32_t count,
                           std::size_t element_bytes, std::uint32_t* positions) {
  return HWY_DYNAMIC_DISPATCH(CompareTile)(current, old, count, element_bytes, positions);
}

std::uint32_t cast_tile(const std::byte* master, std::uint32_t count, const std::byte* old, std::byte* cast,
                        std::byte* kept, std::uint32_t* positions) {
  return HWY_DYNAMIC_DISPATCH(CastTile)(master, count, old, cast, kept, positions);
}

std::uint32_t expand_tile(const std::uint64_t* mask, std::uint32_t count, std::uint32_t* positions) {
  return HWY_DYNAMIC_DISPATCH(ExpandTile)(mask, count, positions);
}

std::uint32_t quotient_bits(const std::uint32_t* gaps, std::uint32_t count, std::uint32_t kp) {
  return HWY_DYNAMIC_DISPATCH(QuotientBits)(gaps, count, kp);
}

void sign_bits(const std::byte* coded, std::uint32_t count, std::size_t element_bytes, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(SignBitsAny)(coded, count, element_bytes, out);
}

std::uint32_t least_low_bits(const std::byte* coded, std::uint32_t count, std::size_t element_bytes,
                             std::uint32_t most) {
  return HWY_DYNAMIC_DISPATCH(LeastLowBitsAny)(coded, count, element_bytes, most);
}

std::uint32_t find_exceptions(const std::byte* coded, std::uint32_t count, std::size_t element_bytes,
                              std::uint32_t low_bits, std::uint32_t* indices) {
  return HWY_DYNAMIC_DISPATCH(FindExceptionsAny)(coded, count, element_bytes, low_bits, indices);
}

}  // namespace sparsecast::cpu
#endif  // HWY_ONCE
