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
  for (std::uint64_t at = begin; at < end && out - places < count; at += std::uint64_t{64} * kWords) {
    std::uint64_t words[kWords];
    for (std::uint32_t w = 0; w < kWords; ++w) words[w] = WordAt(bytes, at + std::uint64_t{64} * w);
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
void ReadFieldsOf(std::span<const std::byte> bytes, std::uint64_t bit, std::uint32_t count, std::uint32_t width,
                  T* words) {
  std::uint32_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  // Eight fields fill `width` bytes: each of two vectors takes the bytes of four fields from the same 16.
  constexpr std::uint32_t kWidest = 15;
  if constexpr (sizeof(T) <= 4) {
    const hn::FixedTag<std::uint8_t, 16> d8;
    const hn::FixedTag<std::uint32_t, 4> d;
    const hn::Rebind<T, decltype(d)> narrow;
    const auto phase = static_cast<std::uint32_t>(bit & 7);
    alignas(16) std::uint8_t taken[32];
    alignas(16) std::uint32_t shifts[8];
    for (std::uint32_t field = 0; field < 8; ++field) {
      const std::uint32_t at = phase + field * std::min(width, kWidest);
      shifts[field] = at & 7;
      // Bits beyond the field are masked off below.
      for (std::uint32_t b = 0; b < 4; ++b) taken[field * 4 + b] = static_cast<std::uint8_t>(std::min(15U, at / 8 + b));
    }
    const auto taken_low = hn::Load(d8, taken);
    const auto taken_high = hn::Load(d8, taken + 16);
    const auto shifts_low = hn::Load(d, shifts);
    const auto shifts_high = hn::Load(d, shifts + 4);
    const auto mask = hn::Set(d, (1U << std::min(width, kWidest)) - 1);
    const auto store = [&](auto fields, T* to) HWY_ATTR {
      if constexpr (sizeof(T) == 4) {
        hn::StoreU(fields, d, to);
      } else {
        hn::StoreU(hn::TruncateTo(narrow, fields), narrow, to);
      }
    };
    for (std::uint64_t at = bit / 8; width <= kWidest && i + 8 <= count && at + 16 <= bytes.size();
         i += 8, at += width) {
      const auto group = hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(bytes.data() + at));
      const auto low = hn::BitCast(d, hn::TableLookupBytes(group, taken_low));
      const auto high = hn::BitCast(d, hn::TableLookupBytes(group, taken_high));
      store(hn::And(hn::Shr(low, shifts_low), mask), words + i);
      store(hn::And(hn::Shr(high, shifts_high), mask), words + i + 4);
    }
  }
#endif
  const std::uint64_t mask = (std::uint64_t{1} << width) - 1;
  for (; i < count; ++i) words[i] = static_cast<T>(WordAt(bytes, bit + std::uint64_t{i} * width) & mask);
}

void ReadFields(std::span<const std::byte> bytes, std::uint64_t bit, std::uint32_t count, std::uint32_t width,
                std::size_t element_bytes, void* words) {
  with_word(element_bytes, [&]<class T>() HWY_ATTR { ReadFieldsOf(bytes, bit, count, width, static_cast<T*>(words)); });
}

}  // namespace sparsecast::cpu::HWY_NAMESPACE
// NOLINTEND(readability-identifier-naming)
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsecast::cpu {

HWY_EXPORT(ListOnes);
HWY_EXPORT(CountOnes);
HWY_EXPORT(SignMagnitudes);
HWY_EXPORT(ReadFields);

std::uint32_t list_ones(std::span<const std::byte> bytes, std::uint64_t begin, std::uint32_t count,
                        std::uint32_t* places) {
  return HWY_DYNAMIC_DISPATCH(ListOnes)(bytes, begin, count, places);
}

std::uint64_t count_ones(std::span<const std::byte> bytes) { return HWY_DYNAMIC_DISPATCH(CountOnes)(bytes); }

bool sign_magnitudes(std::span<const std::byte> signs, std::uint32_t count, std::size_t element_bytes, void* words) {
  return HWY_DYNAMIC_DISPATCH(SignMagnitudes)(signs, count, element_bytes, words);
}

void read_fields(std::span<const std::byte> bytes, std::uint64_t bit, std::uint32_t count, std::uint32_t width,
                 std::size_t element_bytes, void* words) {
  HWY_DYNAMIC_DISPATCH(ReadFields)(bytes, bit, count, width, element_bytes, words);
}

}  // namespace sparsecast::cpu
#endif  // HWY_ONCE
