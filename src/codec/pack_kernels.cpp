// SPDX-License-Identifier: Apache-2.0
#include "codec/pack_kernels.hpp"

#include <algorithm>

#include "codec/codec_common.hpp"
#include "core/word.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/pack_kernels.cpp"
#include <hwy/foreach_target.h>  // Compiles this file once for each instruction set.
//
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
// Capitals, as Highway has them: the functions that call these have the same words.
// NOLINTBEGIN(readability-identifier-naming)
namespace sparsecast::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::ScalableTag<std::uint32_t>;
using Vec = hn::Vec<Tag>;

/// The longest code that a vector may hold: four of them fit one put.
constexpr std::uint32_t kLongest = 14;

/// Writes the codes of all lanes in order; each has at most kLongest bits, and none beyond its length.
HWY_INLINE void PutCodes(Vec codes, Vec lengths, BitWriter& writer) {
#if HWY_TARGET == HWY_SCALAR
  writer.put(hn::GetLane(codes), hn::GetLane(lengths));
#else
  const hn::Repartition<std::uint64_t, Tag> d;
  const auto low = hn::Set(d, 0xFFFFFFFFULL);
  const auto code_words = hn::BitCast(d, codes);
  const auto length_words = hn::BitCast(d, lengths);
  // Two codes in each word, then four.
  const auto even_lengths = hn::And(length_words, low);
  const auto two = hn::Or(hn::And(code_words, low), hn::Shl(hn::ShiftRight<32>(code_words), even_lengths));
  const auto two_lengths = hn::Add(even_lengths, hn::ShiftRight<32>(length_words));
  const auto left_lengths = hn::ConcatEven(d, two_lengths, two_lengths);
  const auto four = hn::Or(hn::ConcatEven(d, two, two), hn::Shl(hn::ConcatOdd(d, two, two), left_lengths));
  const auto four_lengths = hn::Add(left_lengths, hn::ConcatOdd(d, two_lengths, two_lengths));
  HWY_ALIGN std::uint64_t bits[HWY_MAX_BYTES / 8];
  HWY_ALIGN std::uint64_t counts[HWY_MAX_BYTES / 8];
  hn::Store(four, d, bits);
  hn::Store(four_lengths, d, counts);
  constexpr std::uint64_t kMostPut = 56;
  const std::size_t words = hn::Lanes(d) / 2;
  std::size_t i = 0;
  for (; i + 2 <= words; i += 2) {
    if (counts[i] + counts[i + 1] <= kMostPut) {
      writer.put(bits[i] | bits[i + 1] << counts[i], static_cast<std::uint32_t>(counts[i] + counts[i + 1]));
    } else {
      writer.put(bits[i], static_cast<std::uint32_t>(counts[i]));
      writer.put(bits[i + 1], static_cast<std::uint32_t>(counts[i + 1]));
    }
  }
  for (; i < words; ++i) writer.put(bits[i], static_cast<std::uint32_t>(counts[i]));
#endif
}

/// Writes the codes of all numbers: encode(numbers, codes, lengths) makes the codes of a vector, or returns false where
/// a code may be longer than kLongest; put(number, writer) writes one.
template <class Encode, class Put>
HWY_INLINE void PutEach(const std::uint32_t* numbers, std::uint32_t count, BitWriter& writer, const Encode& encode,
                        const Put& put) {
  const Tag d;
  const auto lanes = static_cast<std::uint32_t>(hn::Lanes(d));
  BitWriter out = writer;  // A copy, which stays in registers.
  std::uint32_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    Vec codes = hn::Zero(d);
    Vec lengths = hn::Zero(d);
    if (HWY_LIKELY(encode(hn::LoadU(d, numbers + i), codes, lengths))) {
      PutCodes(codes, lengths, out);
    } else {
      for (std::uint32_t lane = 0; lane < lanes; ++lane) put(numbers[i + lane], out);
    }
  }
  for (; i < count; ++i) put(numbers[i], out);
  writer = out;
}

HWY_INLINE bool AllBelow(Vec numbers, std::uint32_t bound) {
  const Tag d;
  return hn::AllTrue(d, hn::Lt(numbers, hn::Set(d, bound)));
}

/// Bits up to the highest one of numbers below 2^24: a float holds them exactly, and its exponent tells.
HWY_INLINE Vec Widths(Vec numbers) {
  const Tag d;
  const hn::RebindToSigned<Tag> signed_d;
  const hn::RebindToFloat<Tag> float_d;
  const auto real = hn::ConvertTo(float_d, hn::BitCast(signed_d, numbers));
  const auto width = hn::Sub(hn::ShiftRight<23>(hn::BitCast(d, real)), hn::Set(d, 126));
  return hn::IfThenElseZero(hn::Ne(numbers, hn::Zero(d)), width);
}

/// bits_below_highest() of such numbers.
HWY_INLINE Vec TailWidths(Vec numbers) {
  const Tag d;
  return hn::Sub(Widths(hn::Or(numbers, hn::Set(d, 1))), hn::Set(d, 1));
}

void ListGaps(const std::uint32_t* positions, std::uint32_t count, std::uint32_t* gaps) {
  const Tag d;
  const auto lanes = static_cast<std::uint32_t>(hn::Lanes(d));
  const auto one = hn::Set(d, 1);
  gaps[0] = positions[0];
  std::uint32_t i = 1;
  for (; i + lanes <= count; i += lanes) {
    const auto distance = hn::Sub(hn::LoadU(d, positions + i), hn::LoadU(d, positions + i - 1));
    hn::StoreU(hn::Sub(distance, one), d, gaps + i);
  }
  for (; i < count; ++i) gaps[i] = positions[i] - positions[i - 1] - 1;
}

void PutFields(const std::uint32_t* numbers, std::uint32_t count, std::uint32_t width, BitWriter& writer) {
  if (width == 0) return;
  const Tag d;
  const auto mask = static_cast<std::uint32_t>((std::uint64_t{1} << width) - 1);
  const auto encode = [&](Vec of, Vec& codes, Vec& lengths) HWY_ATTR {
    if (width > kLongest) return false;
    codes = hn::And(of, hn::Set(d, mask));
    lengths = hn::Set(d, width);
    return true;
  };
  PutEach(numbers, count, writer, encode, [&](std::uint32_t number, BitWriter& out) { out.put(number & mask, width); });
}

/// Writes each number >> shift in unary where all are below `bound`, at most kLongest; calls put(number, writer)
/// otherwise.
template <class Put>
HWY_INLINE void PutSmallUnary(const std::uint32_t* numbers, std::uint32_t count, std::uint32_t shift,
                              std::uint32_t bound, BitWriter& writer, const Put& put) {
  const Tag d;
  const auto encode = [&](Vec of, Vec& codes, Vec& lengths) HWY_ATTR {
    const Vec quotients = hn::ShiftRightSame(of, static_cast<int>(shift));
    if (!AllBelow(quotients, bound)) return false;
    codes = hn::Shl(hn::Set(d, 1), quotients);
    lengths = hn::Add(quotients, hn::Set(d, 1));
    return true;
  };
  PutEach(numbers, count, writer, encode, put);
}

void PutUnary(const std::uint32_t* numbers, std::uint32_t count, std::uint32_t shift, BitWriter& writer) {
  PutSmallUnary(numbers, count, shift, kLongest, writer,
                [&](std::uint32_t number, BitWriter& out) { out.put_unary(number >> shift); });
}

void PutQuotients(const std::uint32_t* gaps, std::uint32_t count, std::uint32_t kp, BitWriter& writer,
                  std::vector<std::uint32_t>& escaped) {
  PutSmallUnary(gaps, count, kp, kEscape, writer, [&](std::uint32_t gap, BitWriter& out) {
    const std::uint32_t quotient = gap >> kp;
    out.put_unary(quotient_zeros(quotient));
    if (quotient >= kEscape) escaped.push_back(quotient);
  });
}

template <class T>
void ListMagnitudesOf(const T* coded, std::uint32_t count, std::uint32_t* magnitudes) {
  const Tag d;
  const hn::Rebind<T, Tag> narrow;
  const auto lanes = static_cast<std::uint32_t>(hn::Lanes(d));
  const auto one = hn::Set(narrow, T{1});
  const auto sign = hn::Set(narrow, static_cast<T>(T{1} << (8 * sizeof(T) - 1)));
  const auto zero = hn::Zero(narrow);
  std::uint32_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto word = hn::LoadU(narrow, coded + i);
    const auto down = hn::Ne(hn::And(word, sign), zero);
    const auto magnitude = hn::IfThenElse(down, hn::Not(word), hn::Sub(word, one));
    if constexpr (sizeof(T) == 4) {
      hn::StoreU(magnitude, d, magnitudes + i);
    } else {
      hn::StoreU(hn::PromoteTo(d, magnitude), d, magnitudes + i);
    }
  }
  for (; i < count; ++i) magnitudes[i] = ulp_magnitude(coded[i]);
}

void ListMagnitudes(const void* coded, std::uint32_t count, std::size_t element_bytes, std::uint32_t* magnitudes) {
  switch (element_bytes) {
    case 1:
      return ListMagnitudesOf(static_cast<const std::uint8_t*>(coded), count, magnitudes);
    case 2:
      return ListMagnitudesOf(static_cast<const std::uint16_t*>(coded), count, magnitudes);
    default:
      return ListMagnitudesOf(static_cast<const std::uint32_t*>(coded), count, magnitudes);
  }
}

template <class T>
void PutLowBitsOf(const T* coded, std::uint32_t count, std::uint32_t width, BitWriter& writer) {
  constexpr std::uint32_t kRun = 256;
  std::uint32_t magnitudes[kRun];
  for (std::uint32_t begin = 0; begin < count; begin += kRun) {
    const std::uint32_t each = std::min(kRun, count - begin);
    ListMagnitudesOf(coded + begin, each, magnitudes);
    PutFields(magnitudes, each, width, writer);
  }
}

/// Words of 16 bits, at most 7 bits of each, without spreading them to lanes of 32. Returns how many it has put: whole
/// vectors.
std::uint32_t PutLowBitsOfHalves([[maybe_unused]] const std::uint16_t* coded, [[maybe_unused]] std::uint32_t count,
                                 [[maybe_unused]] std::uint32_t width, [[maybe_unused]] BitWriter& writer) {
#if HWY_TARGET == HWY_SCALAR
  return 0;
#else
  const hn::ScalableTag<std::uint16_t> d;
  const hn::RebindToSigned<decltype(d)> signed_d;
  const hn::Repartition<std::uint32_t, decltype(d)> d32;
  const hn::Repartition<std::uint64_t, decltype(d)> d64;
  const auto lanes = static_cast<std::uint32_t>(hn::Lanes(d));
  const auto one = hn::Set(d, 1);
  const auto mask = hn::Set(d, static_cast<std::uint16_t>((1U << width) - 1));
  const auto low16 = hn::Set(d32, 0xFFFFU);
  const auto low32 = hn::Set(d64, 0xFFFFFFFFULL);
  const int shift = static_cast<int>(width);
  BitWriter out = writer;  // A copy, which stays in registers.
  std::uint32_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto word = hn::LoadU(d, coded + i);
    const auto down = hn::MaskFromVec(hn::BitCast(d, hn::BroadcastSignBit(hn::BitCast(signed_d, word))));
    const auto fields = hn::BitCast(d32, hn::And(hn::IfThenElse(down, hn::Not(word), hn::Sub(word, one)), mask));
    const auto two =
        hn::BitCast(d64, hn::Or(hn::And(fields, low16), hn::ShiftLeftSame(hn::ShiftRight<16>(fields), shift)));
    const auto four = hn::Or(hn::And(two, low32), hn::ShiftLeftSame(hn::ShiftRight<32>(two), 2 * shift));
    const auto eight =
        hn::Or(hn::ConcatEven(d64, four, four), hn::ShiftLeftSame(hn::ConcatOdd(d64, four, four), 4 * shift));
    HWY_ALIGN std::uint64_t bits[HWY_MAX_BYTES / 8];
    hn::Store(eight, d64, bits);
    for (std::uint32_t w = 0; w < lanes / 8; ++w) out.put(bits[w], 8 * width);
  }
  writer = out;
  return i;
#endif
}

void PutLowBits(const void* coded, std::uint32_t count, std::size_t element_bytes, std::uint32_t width,
                BitWriter& writer) {
  constexpr std::uint32_t kWidest = 7;  // So that eight fields fit one put.
  std::uint32_t done = 0;
  switch (element_bytes) {
    case 1:
      return PutLowBitsOf(static_cast<const std::uint8_t*>(coded), count, width, writer);
    case 2:
      if (width <= kWidest) done = PutLowBitsOfHalves(static_cast<const std::uint16_t*>(coded), count, width, writer);
      return PutLowBitsOf(static_cast<const std::uint16_t*>(coded) + done, count - done, width, writer);
    default:
      return PutLowBitsOf(static_cast<const std::uint32_t*>(coded), count, width, writer);
  }
}

void CountWidths(const std::uint32_t* numbers, std::uint32_t count, std::uint32_t* by_width) {
  const Tag d;
  const auto lanes = static_cast<std::uint32_t>(hn::Lanes(d));
  constexpr std::uint32_t kRun = 512;  // Stays in the nearest cache from place to place.
  const std::uint32_t whole = count / lanes * lanes;
  for (std::uint32_t begin = 0; begin < whole; begin += kRun) {
    const std::uint32_t end = std::min(whole, begin + kRun);
    // Counts the magnitudes with a bit at or above each place, until there are none.
    std::uint32_t before = end - begin;
    for (std::uint32_t bits = 0; bits < 32 && before != 0; ++bits) {
      auto negative = hn::Zero(d);  // Masks are -1.
      const auto high = hn::Set(d, ~std::uint32_t{0} << bits);
      for (std::uint32_t i = begin; i < end; i += lanes) {
        const auto above = hn::Ne(hn::And(hn::LoadU(d, numbers + i), high), hn::Zero(d));
        negative = hn::Add(negative, hn::VecFromMask(d, above));
      }
      const std::uint32_t above = 0U - hn::GetLane(hn::SumOfLanes(d, negative));
      by_width[bits] += before - above;
      before = above;
    }
    by_width[32] += before;
  }
  for (std::uint32_t i = whole; i < count; ++i) ++by_width[bit_width32(numbers[i])];
}

void PutWidths(const std::uint32_t* numbers, std::uint32_t count, std::uint32_t field, BitWriter& writer) {
  const Tag d;
  const auto encode = [&](Vec of, Vec& codes, Vec& lengths) HWY_ATTR {
    if (!AllBelow(of, 1U << 24)) return false;
    codes = Widths(of);
    lengths = hn::Set(d, field);
    return true;
  };
  PutEach(numbers, count, writer, encode,
          [&](std::uint32_t number, BitWriter& out) { out.put(bit_width32(number), field); });
}

void PutUnaryTailWidths(const std::uint32_t* numbers, std::uint32_t count, BitWriter& writer) {
  const Tag d;
  const auto encode = [&](Vec of, Vec& codes, Vec& lengths) HWY_ATTR {
    if (!AllBelow(of, 1U << kLongest)) return false;
    const Vec widths = TailWidths(of);
    codes = hn::Shl(hn::Set(d, 1), widths);
    lengths = hn::Add(widths, hn::Set(d, 1));
    return true;
  };
  PutEach(numbers, count, writer, encode,
          [](std::uint32_t number, BitWriter& out) { out.put_unary(bits_below_highest(number)); });
}

void PutTails(const std::uint32_t* numbers, std::uint32_t count, BitWriter& writer) {
  const Tag d;
  const auto encode = [&](Vec of, Vec& codes, Vec& lengths) HWY_ATTR {
    if (!AllBelow(of, 1U << kLongest)) return false;
    const Vec widths = TailWidths(of);
    codes = hn::AndNot(hn::Shl(hn::Set(d, 1), widths), of);
    lengths = widths;
    return true;
  };
  PutEach(numbers, count, writer, encode, [](std::uint32_t number, BitWriter& out) {
    const std::uint32_t bits = bits_below_highest(number);
    if (bits != 0) out.put(number ^ 1U << bits, bits);
  });
}

}  // namespace sparsecast::cpu::HWY_NAMESPACE
// NOLINTEND(readability-identifier-naming)
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsecast::cpu {

HWY_EXPORT(ListGaps);
HWY_EXPORT(PutFields);
HWY_EXPORT(PutUnary);
HWY_EXPORT(PutQuotients);
HWY_EXPORT(ListMagnitudes);
HWY_EXPORT(PutLowBits);
HWY_EXPORT(CountWidths);
HWY_EXPORT(PutWidths);
HWY_EXPORT(PutUnaryTailWidths);
HWY_EXPORT(PutTails);

void list_gaps(const std::uint32_t* positions, std::uint32_t count, std::uint32_t* gaps) {
  HWY_DYNAMIC_DISPATCH(ListGaps)(positions, count, gaps);
}

void put_fields(const std::uint32_t* numbers, std::uint32_t count, std::uint32_t width, BitWriter& writer) {
  HWY_DYNAMIC_DISPATCH(PutFields)(numbers, count, width, writer);
}

void put_unary(const std::uint32_t* numbers, std::uint32_t count, std::uint32_t shift, BitWriter& writer) {
  HWY_DYNAMIC_DISPATCH(PutUnary)(numbers, count, shift, writer);
}

void put_quotients(const std::uint32_t* gaps, std::uint32_t count, std::uint32_t kp, BitWriter& writer,
                   std::vector<std::uint32_t>& escaped) {
  HWY_DYNAMIC_DISPATCH(PutQuotients)(gaps, count, kp, writer, escaped);
}

void list_magnitudes(const void* coded, std::uint32_t count, std::size_t element_bytes, std::uint32_t* magnitudes) {
  HWY_DYNAMIC_DISPATCH(ListMagnitudes)(coded, count, element_bytes, magnitudes);
}

void put_low_bits(const std::uint8_t* coded, std::uint32_t count, std::uint32_t width, BitWriter& writer) {
  if (width != 0) HWY_DYNAMIC_DISPATCH(PutLowBits)(coded, count, 1, width, writer);
}

void put_low_bits(const std::uint16_t* coded, std::uint32_t count, std::uint32_t width, BitWriter& writer) {
  if (width != 0) HWY_DYNAMIC_DISPATCH(PutLowBits)(coded, count, 2, width, writer);
}

void put_low_bits(const std::uint32_t* coded, std::uint32_t count, std::uint32_t width, BitWriter& writer) {
  if (width != 0) HWY_DYNAMIC_DISPATCH(PutLowBits)(coded, count, 4, width, writer);
}

void count_widths(const std::uint32_t* numbers, std::uint32_t count, std::uint32_t* by_width) {
  HWY_DYNAMIC_DISPATCH(CountWidths)(numbers, count, by_width);
}

void put_widths(const std::uint32_t* numbers, std::uint32_t count, std::uint32_t field, BitWriter& writer) {
  HWY_DYNAMIC_DISPATCH(PutWidths)(numbers, count, field, writer);
}

void put_unary_tail_widths(const std::uint32_t* numbers, std::uint32_t count, BitWriter& writer) {
  HWY_DYNAMIC_DISPATCH(PutUnaryTailWidths)(numbers, count, writer);
}

void put_tails(const std::uint32_t* numbers, std::uint32_t count, BitWriter& writer) {
  HWY_DYNAMIC_DISPATCH(PutTails)(numbers, count, writer);
}

}  // namespace sparsecast::cpu
#endif  // HWY_ONCE
