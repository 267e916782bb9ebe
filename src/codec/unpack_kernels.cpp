// SPDX-License-Identifier: Apache-2.0
#include "codec/unpack_kernels.hpp"

#include <algorithm>

#include "codec/codec_common.hpp"
#include "core/word.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/unpack_kernels.cpp"
#include <hwy/foreach_target.h>  // Compiles this file once for each instruction set.
//
#include <hwy/highway.h>

#include "codec/expand-inl.hpp"

HWY_BEFORE_NAMESPACE();
// Capitals, as Highway has them: the functions that call these have the same words.
// NOLINTBEGIN(readability-identifier-naming)
namespace sparsecast::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// 64 bits from `bit` on, zeros beyond the end.
HWY_INLINE std::uint64_t WordAt(std::span<const std::byte> bytes, std::uint64_t bit) {
  const std::uint64_t byte = bit >> 3;
  const auto shift = static_cast<unsigned>(bit & 7);
  if (HWY_LIKELY(byte + 9 <= bytes.size())) {
    const auto low = load_word<std::uint64_t>(bytes.data() + byte);
    // Two shifts, because one of 64 bits is not defined.
    return low >> shift | static_cast<std::uint64_t>(bytes[byte + 8]) << 1 << (63 - shift);
  }
  std::uint64_t word = 0;
  if (byte < bytes.size()) std::memcpy(&word, bytes.data() + byte, std::min<std::uint64_t>(8, bytes.size() - byte));
  return word >> shift;
}

std::uint32_t ListOnes(std::span<const std::byte> bytes, std::uint64_t begin, std::uint32_t count,
                       std::uint32_t* places) {
  constexpr std::uint32_t kWords = 8;
  const std::uint64_t end = bytes.size() * 8;
  std::uint32_t* out = places;
  for (std::uint64_t at = begin; at < end && out - places < count; at += kWords * 64) {
    std::uint64_t words[kWords];
    for (std::uint32_t w = 0; w < kWords; ++w) words[w] = WordAt(bytes, at + w * 64);
    out = Expand(words, kWords, static_cast<std::uint32_t>(at - begin), out);
  }
  return std::min(count, static_cast<std::uint32_t>(out - places));
}

std::uint64_t CountOnes(std::span<const std::byte> bytes) {
  std::uint64_t ones = 0;
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    ones += static_cast<std::uint64_t>(std::popcount(load_word<std::uint64_t>(bytes.data() + at)));
  }
  for (; at + 4 <= bytes.size(); at += 4) {
    ones += static_cast<std::uint64_t>(std::popcount(load_word<std::uint32_t>(bytes.data() + at)));
  }
  return ones;
}

template <class T>
bool SignMagnitudesOf(std::span<const std::byte> signs, std::uint32_t count, T* words) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::uint32_t>(hn::Lanes(d));
  // One more than this has the sign of a negative number.
  constexpr T kMost = static_cast<T>(static_cast<T>(~T{0}) >> 1);
  const auto one = hn::Set(d, T{1});
  const auto most = hn::Set(d, kMost);
  bool fits = true;
  std::uint32_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const std::uint64_t bits = WordAt(signs, i);
    const auto down = hn::LoadMaskBits(d, reinterpret_cast<const std::uint8_t*>(&bits));
    const auto magnitude = hn::LoadU(d, words + i);
    fits = fits && hn::AllFalse(d, hn::AndNot(down, hn::Eq(magnitude, most)));
    hn::StoreU(hn::IfThenElse(down, hn::Not(magnitude), hn::Add(magnitude, one)), d, words + i);
  }
  for (; i < count; ++i) {
    const bool down = (WordAt(signs, i) & 1) != 0;
    fits = fits && (down || words[i] != kMost);
    words[i] = ulp_from_magnitude(words[i], down);
  }
  return fits;
}

bool SignMagnitudes(std::span<const std::byte> signs, std::uint32_t count, std::size_t element_bytes, void* words) {
  return with_word(element_bytes,
                   [&]<class T>() HWY_ATTR { return SignMagnitudesOf(signs, count, static_cast<T*>(words)); });
}

template <class T>
void AdvanceWordsOf(const T* before, const T* coded, std::uint32_t count, ValueCodec values, bool floating,
                    bool inverse, T* after) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::uint32_t>(hn::Lanes(d));
  constexpr T kSign = static_cast<T>(T{1} << (8 * sizeof(T) - 1));
  const auto sign = hn::Set(d, kSign);
  const auto zero = hn::Zero(d);
  // ordered() and from_ordered() invert the bits of a float: all of them on one side of zero, the sign on the other.
  const auto all_of_float = hn::Set(d, static_cast<T>(floating ? ~T{0} : T{0}));
  const auto sign_of_float = hn::Set(d, floating ? kSign : T{0});
  std::uint32_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto old_bits = hn::LoadU(d, before + i);
    const auto word = hn::LoadU(d, coded + i);
    auto bits = word;
    if (values == ValueCodec::kXor) bits = hn::Xor(old_bits, word);
    if (values == ValueCodec::kUlp) {
      const auto negative = hn::Ne(hn::And(old_bits, sign), zero);
      const auto ordered_bits = hn::Xor(old_bits, hn::IfThenElse(negative, all_of_float, sign_of_float));
      const auto moved = inverse ? hn::Sub(ordered_bits, word) : hn::Add(ordered_bits, word);
      const auto positive = hn::Ne(hn::And(moved, sign), zero);
      bits = hn::Xor(moved, hn::IfThenElse(positive, sign_of_float, all_of_float));
    }
    hn::StoreU(bits, d, after + i);
  }
  for (; i < count; ++i) after[i] = changed_bits(before[i], coded[i], values, floating, inverse);
}

void AdvanceWords(const void* before, const void* coded, std::uint32_t count, std::size_t element_bytes,
                  ValueCodec values, bool floating, bool inverse, void* after) {
  with_word(element_bytes, [&]<class T>() HWY_ATTR {
    AdvanceWordsOf(static_cast<const T*>(before), static_cast<const T*>(coded), count, values, floating, inverse,
                   static_cast<T*>(after));
  });
}

}  // namespace sparsecast::cpu::HWY_NAMESPACE
// NOLINTEND(readability-identifier-naming)
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsecast::cpu {

HWY_EXPORT(ListOnes);
HWY_EXPORT(CountOnes);
HWY_EXPORT(SignMagnitudes);
HWY_EXPORT(AdvanceWords);

std::uint32_t list_ones(std::span<const std::byte> bytes, std::uint64_t begin, std::uint32_t count,
                        std::uint32_t* places) {
  return HWY_DYNAMIC_DISPATCH(ListOnes)(bytes, begin, count, places);
}

std::uint64_t count_ones(std::span<const std::byte> bytes) { return HWY_DYNAMIC_DISPATCH(CountOnes)(bytes); }

bool sign_magnitudes(std::span<const std::byte> signs, std::uint32_t count, std::size_t element_bytes, void* words) {
  return HWY_DYNAMIC_DISPATCH(SignMagnitudes)(signs, count, element_bytes, words);
}

void advance_words(const void* before, const void* coded, std::uint32_t count, std::size_t element_bytes,
                   ValueCodec values, bool floating, bool inverse, void* after) {
  HWY_DYNAMIC_DISPATCH(AdvanceWords)(before, coded, count, element_bytes, values, floating, inverse, after);
}

}  // namespace sparsecast::cpu
#endif  // HWY_ONCE
