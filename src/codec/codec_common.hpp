// SPDX-License-Identifier: Apache-2.0
#pragma once

// Per-element and per-block arithmetic of the codecs (docs/wire-format.md §4 and §5), shared by host and device.

#include <cstdint>

#include "codec/pair_code.hpp"
#include "core/host_device.hpp"
#include "sparsecast/codec.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast {

/// Returns the number of bytes that `bits` bits take when they are padded to a multiple of 4 bytes, as the parts of a
/// block are.
SPARSECAST_HD std::uint64_t padded_bytes(std::uint64_t bits) { return (bits + 31) / 32 * 4; }

/// Returns the position of the highest set bit plus one; 0 for 0.
SPARSECAST_HD int bit_width64(std::uint64_t x) {
#if defined(__CUDA_ARCH__)
  return 64 - __clzll(static_cast<long long>(x));
#else
  return x == 0 ? 0 : 64 - __builtin_clzll(x);
#endif
}

/// Returns the position of the highest set bit of a 32-bit number plus one; 0 for 0.
SPARSECAST_HD std::uint32_t bit_width32(std::uint32_t x) {
#if defined(__CUDA_ARCH__)
  return 32 - static_cast<std::uint32_t>(__clz(static_cast<int>(x)));
#else
  return x == 0 ? 0 : 32 - static_cast<std::uint32_t>(__builtin_clz(x));
#endif
}

/// Order of a dtype's bit patterns; the `ulp` codec counts steps in this order. For pairs, it is the order of each half
/// of a byte.
enum class UlpOrder : std::uint8_t { kInteger, kFloat, kIntegerPair, kFloatPair };

inline UlpOrder ulp_order(DType dtype) {
  if (dtype == DType::kI4X2) return UlpOrder::kIntegerPair;
  if (dtype == DType::kF4X2) return UlpOrder::kFloatPair;
  return is_floating(dtype) ? UlpOrder::kFloat : UlpOrder::kInteger;
}

SPARSECAST_HD constexpr bool is_pair(UlpOrder order) {
  return order == UlpOrder::kIntegerPair || order == UlpOrder::kFloatPair;
}

/// Returns the ordered-integer form of an element's bits. For floats this is an unsigned integer that grows with the
/// value; the map is a bijection on all bit patterns, those of NaNs included. For integers the map is the identity.
template <class T>
SPARSECAST_HD T ordered(T bits, UlpOrder order) {
  constexpr T kSign = static_cast<T>(T{1} << (8 * sizeof(T) - 1));
  if constexpr (sizeof(T) == 1) {
    if (order == UlpOrder::kFloatPair) return ordered_halves(bits);
  }
  if (order != UlpOrder::kFloat) return bits;
  return static_cast<T>(bits & kSign ? ~bits : bits | kSign);
}

template <class T>
SPARSECAST_HD T from_ordered(T value, UlpOrder order) {
  constexpr T kSign = static_cast<T>(T{1} << (8 * sizeof(T) - 1));
  if constexpr (sizeof(T) == 1) {
    if (order == UlpOrder::kFloatPair) return halves_from_ordered(value);
  }
  if (order != UlpOrder::kFloat) return value;
  return static_cast<T>(value & kSign ? value ^ kSign : ~value);
}

/// Returns the `ulp` coded word of a change: the difference of the ordered-integer forms (ordered()) modulo 2^w for
/// elements of w bits; for pairs, the code of the differences of both halves.
template <class T>
SPARSECAST_HD T ulp_difference(T new_bits, T old_bits, UlpOrder order) {
  const T to = ordered(new_bits, order);
  const T from = ordered(old_bits, order);
  if constexpr (sizeof(T) == 1) {
    if (is_pair(order)) return pair_code(subtract_halves(to, from));
  }
  return static_cast<T>(to - from);
}

/// Returns the bits of an element after the change of an `ulp` coded word is applied to `bits`, or with `inverse`
/// undone.
template <class T>
SPARSECAST_HD T ulp_advance(T bits, T coded, UlpOrder order, bool inverse = false) {
  const T from = ordered(bits, order);
  if constexpr (sizeof(T) == 1) {
    if (is_pair(order)) {
      const std::uint8_t steps = pair_steps(coded);
      return from_ordered(inverse ? subtract_halves(from, steps) : add_halves(from, steps), order);
    }
  }
  return from_ordered(static_cast<T>(inverse ? from - coded : from + coded), order);
}

/// Returns the `ulp` coded word of one change that has the effect of two changes of an element, `first` and then
/// `second`.
template <class T>
SPARSECAST_HD T ulp_sum(T first, T second, UlpOrder order) {
  if constexpr (sizeof(T) == 1) {
    if (is_pair(order)) return pair_code(add_halves(pair_steps(first), pair_steps(second)));
  }
  return static_cast<T>(first + second);
}

/// Returns the `ulp` coded word of the change that undoes the change with the coded word `coded`.
template <class T>
SPARSECAST_HD T ulp_negative(T coded, UlpOrder order) {
  if constexpr (sizeof(T) == 1) {
    if (is_pair(order)) return pair_code(subtract_halves(0, pair_steps(coded)));
  }
  return static_cast<T>(T{0} - coded);
}

/// Returns the bits of an element after the change of a coded word is applied to `old_bits`, or with `inverse` undone.
/// `inverse` needs the value codec `xor` or `ulp`.
template <class T>
SPARSECAST_HD T changed_bits(T old_bits, T coded, ValueCodec values, UlpOrder order, bool inverse) {
  if (values == ValueCodec::kRaw) return coded;
  if (values == ValueCodec::kXor) return static_cast<T>(old_bits ^ coded);
  return ulp_advance(old_bits, coded, order, inverse);
}

/// Returns the magnitude of an `ulp` coded word that is not 0: the distance in ULP, minus one.
template <class T>
SPARSECAST_HD T ulp_magnitude(T coded) {
  constexpr T kSign = static_cast<T>(T{1} << (8 * sizeof(T) - 1));
  return static_cast<T>(coded & kSign ? ~coded : coded - 1);
}

template <class T>
SPARSECAST_HD T ulp_from_magnitude(T magnitude, bool negative) {
  return static_cast<T>(negative ? ~magnitude : magnitude + 1);
}

/// Returns the Rice parameter for n gaps that add up to `total` (the golden-ratio rule in integers: the best parameter
/// for a geometric distribution of that mean, after A. Kiely, "Selecting the Golomb Parameter in Rice Coding", 2004).
/// Both are at most the 2^22 elements of a section, so that 32 bits suffice.
SPARSECAST_HD std::uint32_t rice_parameter(std::uint32_t total, std::uint32_t n) {
  const std::uint32_t width = bit_width32(total * 123 / (128 * n));
  return width > 1 ? width - 1 : 0;
}

/// Quotients of packed gaps from this number on are escaped, that is, not written in unary alone. Thus a long gap
/// between clusters of changes needs no long unary code, and does not force a large Rice parameter on the short gaps
/// inside the clusters.
inline constexpr std::uint32_t kEscape = 8;
/// Maximum number of zero bits before the one bit in the code of an escaped quotient. It follows from gaps being less
/// than 2^22.
inline constexpr std::uint32_t kMaxQuotientZeros = kEscape + 21;

/// Returns a lower bound, over all Rice parameters, on the number of bits in the code of a gap (quotient and
/// remainder).
SPARSECAST_HD std::uint32_t least_gap_bits(std::uint32_t gap) { return bit_width32(gap) + 1; }

/// Returns the number of bits in the tail of a quotient's code (docs/wire-format.md §4.1); 0 for a quotient below
/// kEscape.
SPARSECAST_HD std::uint32_t quotient_tail_bits(std::uint32_t quotient) {
  return quotient < kEscape ? 0 : bit_width32(quotient - (kEscape - 1)) - 1;
}

/// Returns the number of zero bits before the one bit in a quotient's code.
SPARSECAST_HD std::uint32_t quotient_zeros(std::uint32_t quotient) {
  return quotient < kEscape ? quotient : kEscape + quotient_tail_bits(quotient);
}

/// Returns the least quotient whose code has `zeros` zero bits before the one bit. A quotient is this number plus the
/// number in its tail.
SPARSECAST_HD std::uint32_t quotient_of_zeros(std::uint32_t zeros) {
  return zeros < kEscape ? zeros : kEscape - 1 + (1U << (zeros - kEscape));
}

/// Returns an estimate of the number of bits that the positions of `exceptions` exceptions among n values take; used
/// only to choose Coding::kv.
SPARSECAST_HD std::uint64_t estimate_rice_bits(std::uint32_t exceptions, std::uint32_t n) {
  if (exceptions == 0) return 0;
  const std::uint32_t k = rice_parameter(n - exceptions, exceptions);
  return std::uint64_t{exceptions} * (1 + k) + ((n - exceptions) >> k);
}

/// Returns an estimate of the number of bits that the magnitudes of n values take with Coding::kv = `kv`, for elements
/// of `width` bits (docs/wire-format.md §5.3). by_width[b] is the number of magnitudes that have b bits. Sets
/// `exceptions` to the number of magnitudes that have more than `kv` bits.
SPARSECAST_HD std::uint64_t ulp_cost(const std::uint32_t* by_width, std::uint32_t width, std::uint32_t n,
                                     std::uint32_t kv, std::uint32_t& exceptions) {
  exceptions = 0;
  std::uint64_t cost = std::uint64_t{n} * kv;
  for (std::uint32_t bits = kv + 1; bits <= width; ++bits) {
    exceptions += by_width[bits];
    cost += std::uint64_t{by_width[bits]} * (2 * (bits - kv) - 1);
  }
  return cost + estimate_rice_bits(exceptions, n);
}

// Quick blocks (docs/wire-format.md §5.7): fields of one width that few values exceed, after M. Zukowski et al.,
// "Super-Scalar RAM-CPU Cache Compression", 2006 (patched frames of reference).

/// Returns true when a block in which `changes` of `span` elements changed is coded as a quick block, if
/// BlockRules::quick is set.
SPARSECAST_HD bool is_quick_block(std::uint32_t changes, std::uint32_t span) {
  return std::uint64_t{changes} * 4 >= span;
}

/// Returns the maximum number of exceptions among the values of a quick block with `changes` changes.
SPARSECAST_HD std::uint32_t quick_exceptions(std::uint32_t changes) { return changes / 16; }

/// Returns the number of bits of the field that holds the length of a magnitude, a number from 0 to width - 1. `width`
/// is the number of bits of an element (docs/wire-format.md §4.2).
SPARSECAST_HD constexpr std::uint32_t length_field_bits(std::uint32_t width) {
  return width == 8 ? 3 : width == 16 ? 4 : width == 32 ? 5 : 6;
}

/// Returns the number of bits of a magnitude below its highest one bit.
template <class T>
SPARSECAST_HD std::uint32_t bits_below_highest(T magnitude) {
  if (magnitude < 2) return 0;
  if constexpr (sizeof(T) <= 4) {
    return bit_width32(magnitude) - 1;
  } else {
    return static_cast<std::uint32_t>(bit_width64(magnitude)) - 1;
  }
}

/// Returns the number of bits that the magnitudes of n values take when each is stored with its length
/// (Coding::lengths). by_width[b] is the number of magnitudes that have b bits, and `width` the number of bits of an
/// element.
SPARSECAST_HD std::uint64_t lengths_cost(const std::uint32_t* by_width, std::uint32_t width, std::uint32_t n) {
  std::uint64_t cost = std::uint64_t{n} * length_field_bits(width);
  for (std::uint32_t bits = 2; bits <= width; ++bits) cost += std::uint64_t{by_width[bits]} * (bits - 1);
  return cost;
}

/// Returns the number of bits of the exponential-Golomb code, of order 0, of v < 2^64 - 1.
SPARSECAST_HD std::uint32_t exp_golomb_bits(std::uint64_t v) {
  return static_cast<std::uint32_t>(2 * bit_width64(v + 1) - 1);
}

/// Returns the bf16 bits of the number with these fp32 bits, rounded to nearest, ties to even. A NaN becomes a quiet
/// NaN with the same sign and the upper bits of its payload.
SPARSECAST_HD std::uint16_t bf16_from_f32_bits(std::uint32_t bits) {
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x0040U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

}  // namespace sparsecast
