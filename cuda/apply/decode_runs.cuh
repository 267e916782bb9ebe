// SPDX-License-Identifier: Apache-2.0
#pragma once

// Decodes one block with one warp, without a barrier of the CTA: copies the payload to shared memory and decodes its
// codes there. It takes the blocks that warp_decodes() accepts, which are most blocks of sparse deltas;
// decode_blocks.cuh takes the others. It also checks every rule of docs/wire-format.md §4, but reports only whether all
// of them hold. If one does not, a CTA decodes the block again and reports which.

#include "codec/block.hpp"
#include "codec/codec_common.hpp"
#include "cuda/apply/bit_string.cuh"
#include "cuda/apply/received.hpp"
#include "cuda/common/coding_threads.cuh"

namespace sparsecast::cuda {

/// Largest payload, in words, of a block that a single warp decodes.
inline constexpr std::uint32_t kRunPayloadWords = 512;
/// Largest number of changes of a block that a single warp decodes. A lane has at most 31 changes, whose signs it reads
/// together.
inline constexpr std::uint32_t kRunDecoded = 31 * 32;
/// Largest number of exceptions of a block that a single warp decodes.
inline constexpr std::uint32_t kRunExceptions = 256;

/// Returns whether the block's coding and size let a single warp decode it. A whole CTA decodes the other blocks.
__device__ inline bool warp_decodes(const ReceivedBlock& block) {
  const Coding coding = Coding::unpack(block.coding);
  return coding.positions == PositionCodec::kPacked && coding.kv == 0 && !coding.lengths &&
         block.changed <= kRunDecoded && block.payload_words <= kRunPayloadWords;
}

/// Shared memory of a warp: the copy of a payload, the decoded changes, and the bit numbers of the one bits in the
/// codes of the exceptions.
template <class T>
struct RunDecoded {
  // Reading a field at the end of the payload may also read the word after it.
  std::uint32_t payload[kRunPayloadWords + 2];
  std::uint32_t positions[kRunDecoded];
  T coded[kRunDecoded];
  std::uint32_t gap_ones[kRunExceptions];
  std::uint32_t width_ones[kRunExceptions];
};

/// A bit string of whole words in shared memory.
struct RunBits {
  const std::uint32_t* words = nullptr;
  std::uint32_t count = 0;

  __device__ std::uint32_t bits() const { return count * 32; }
  /// Returns the `width` bits (0 to 31) that begin at bit number `bit`, which is inside the string or at its end.
  __device__ std::uint32_t get(std::uint32_t bit, std::uint32_t width) const {
    return __funnelshift_r(words[bit / 32], words[bit / 32 + 1], bit) & ((1U << width) - 1);
  }
  /// Returns the `width` bits (0 to 64) that begin at bit number `bit`; all of them must be inside the string.
  __device__ std::uint64_t get_long(std::uint32_t bit, std::uint32_t width) const {
    std::uint64_t value = 0;
    for (std::uint32_t at = 0; at < width; at += 16) {
      const std::uint32_t step = width - at < 16 ? width - at : 16;
      value |= std::uint64_t{get(bit + at, step)} << at;
    }
    return value;
  }
  /// Returns whether the bits from bit number `bit` (inside the string or at its end) to the end of its 32-bit word are
  /// zero.
  __device__ bool padded_at(std::uint32_t bit) const { return bit % 32 == 0 || words[bit / 32] >> bit % 32 == 0; }
};

/// Finds the next `wanted` one bits, from bit number `from` on, and writes their bit numbers to `ones`. Returns whether
/// the string has enough of them.
__device__ inline bool find_run_ones(const RunBits& bits, std::uint32_t from, std::uint32_t wanted,
                                     std::uint32_t* ones) {
  std::uint32_t found = 0;
  for (std::uint32_t first = from / 32; first < bits.count && found < wanted; first += 32) {
    const std::uint32_t w = first + WarpThreads::rank();
    std::uint32_t word = w < bits.count ? bits.words[w] : 0;
    if (w == from / 32) word &= ~0U << from % 32;
    const auto scanned = WarpThreads::scan(static_cast<std::uint32_t>(__popc(word)));
    std::uint32_t* out = ones + found + scanned.before;
    for (; word != 0 && out < ones + wanted; word &= word - 1) {
      *out++ = 32 * w + static_cast<std::uint32_t>(__ffs(static_cast<int>(word))) - 1;
    }
    found += scanned.total;
  }
  __syncwarp();
  return found >= wanted;
}

/// Decodes the packed positions of `count` changes among `span` elements, with Rice parameter `kp`, and returns whether
/// they are valid. Writes to `positions`, for each change, the sum of the steps (gap plus one) of its lane's changes up
/// to this one. The position is this sum plus the lane's `origin`, which it sets. Sets `values` to the words of the
/// payload after the position part.
__device__ inline bool decode_run_positions(const RunBits& payload, std::uint32_t count, std::uint32_t span,
                                            std::uint32_t kp, std::uint32_t* positions, RunBits& values,
                                            std::uint32_t& origin) {
  const std::uint32_t quotients = count * kp;
  if (quotients + count > payload.bits() || !find_run_ones(payload, quotients, count, positions)) return false;
  const Share share = WarpThreads::share(count);
  const std::uint32_t tails = positions[count - 1] + 1;
  const std::uint32_t begin = share.begin == 0 ? quotients : positions[share.begin - 1] + 1;
  std::uint32_t own_tails = 0;
  bool valid = true;
  std::uint32_t next = begin;
  for (std::uint32_t i = share.begin; i < share.end; ++i) {
    const std::uint32_t zeros = positions[i] - next;
    next = positions[i] + 1;
    own_tails += zeros > kEscape ? zeros - kEscape : 0;
    valid = valid && zeros <= kMaxQuotientZeros;
  }
  const auto scanned_tails = WarpThreads::scan(own_tails);
  const std::uint32_t end = tails + scanned_tails.total;
  const std::uint32_t words = (end + 31) / 32;
  if (WarpThreads::any(!valid) || words > payload.count || !payload.padded_at(end)) return false;
  // The lanes have read the entries at the borders of their shares, and now overwrite them.
  __syncwarp();
  std::uint32_t tail_bit = tails + scanned_tails.before;
  std::uint32_t remainder_bit = share.begin * kp;
  const std::uint32_t most = span >> kp;
  std::uint32_t distance = 0;
  next = begin;
  for (std::uint32_t i = share.begin; i < share.end; ++i) {
    std::uint32_t quotient = positions[i] - next;
    next = positions[i] + 1;
    if (quotient >= kEscape) {
      const std::uint32_t width = quotient - kEscape;
      quotient = quotient_of_zeros(quotient) + payload.get(tail_bit, width);
      tail_bit += width;
    }
    // Larger quotients could overflow the sums below.
    valid = valid && quotient <= most;
    distance += (quotient << kp | payload.get(remainder_bit, kp)) + 1;
    remainder_bit += kp;
    positions[i] = distance;
  }
  if (WarpThreads::any(!valid || distance > span)) return false;
  const auto distances = WarpThreads::scan(distance);
  if (distances.total > span) return false;
  origin = distances.before - 1;
  values = {payload.words + words, payload.count - words};
  return true;
}

/// Decodes the exceptions of a block with `ulp` words and `count` changes, from bit number `at` of the value part on,
/// and writes their words to run.coded, where all words must have magnitude 0. `ke` is the Rice parameter of the gaps.
/// Returns whether the exceptions are valid and the value part ends with them. The lanes may have written run.coded
/// just before, because find_run_ones() ends with a barrier.
template <class T>
__device__ bool decode_run_exceptions(const RunBits& values, std::uint32_t at, std::uint32_t count, std::uint32_t ke,
                                      RunDecoded<T>& run) {
  constexpr std::uint32_t kWidth = 8 * sizeof(T);
  constexpr T kHalf = static_cast<T>(T{1} << (kWidth - 1));
  // The read may pass the end, since words follow the payload; the number of exceptions is less than 2^10.
  const std::uint32_t low_bits = static_cast<std::uint32_t>(__ffs(static_cast<int>(values.get(at, 31)))) - 1;
  if (low_bits > 10 || at + 2 * low_bits + 1 > values.bits()) return false;
  const std::uint32_t number = (1U << low_bits | values.get(at + low_bits + 1, low_bits)) - 1;
  const std::uint32_t remainders = at + 2 * low_bits + 1;
  std::uint32_t end = remainders;
  if (number > kRunExceptions || number > count || (number == 0 && ke != 0)) return false;
  if (number != 0) {
    const std::uint32_t gaps = remainders + number * ke;
    if (gaps > values.bits() || !find_run_ones(values, gaps, number, run.gap_ones)) return false;
    const std::uint32_t widths = run.gap_ones[number - 1] + 1;
    if (!find_run_ones(values, widths, number, run.width_ones)) return false;
    end = run.width_ones[number - 1] + 1;
    std::uint32_t next = 0;
    for (std::uint32_t first = 0; first < number; first += 32) {
      const std::uint32_t j = first + WarpThreads::rank();
      std::uint32_t step = 0;
      std::uint32_t bits = 0;
      bool valid = true;
      if (j < number) {
        const std::uint32_t zeros = zeros_before(run.gap_ones, j, gaps);
        bits = zeros_before(run.width_ones, j, widths);
        valid = zeros <= count >> ke && bits + 1 < kWidth;
        step = (zeros << ke | values.get(remainders + j * ke, ke)) + 1;
      }
      if (WarpThreads::any(!valid)) return false;
      const auto steps = WarpThreads::scan(step);
      const auto highs = WarpThreads::scan(bits);
      if (next + steps.total > count || end + highs.total > values.bits()) return false;
      if (j < number) {
        const std::uint32_t index = next + steps.before + step - 1;
        const T magnitude = static_cast<T>(T{1} << bits | static_cast<T>(values.get_long(end + highs.before, bits)));
        const bool negative = values.get(index, 1) != 0;
        valid = magnitude < static_cast<T>(kHalf - (negative ? 0 : 1));
        run.coded[index] = ulp_from_magnitude(magnitude, negative);
      }
      if (WarpThreads::any(!valid)) return false;
      next += steps.total;
      end += highs.total;
    }
  }
  return (end + 31) / 32 == values.count && values.padded_at(end);
}

/// Decodes the payload of a block from its copy in run.payload to run.positions and run.coded. Returns whether the
/// payload is valid.
template <class T>
__device__ bool decode_copied(const ReceivedBlock& block, RunDecoded<T>& run) {
  constexpr std::uint32_t kWidth = 8 * sizeof(T);
  const std::uint32_t count = block.changed;
  const Coding coding = Coding::unpack(block.coding);
  RunBits values;
  std::uint32_t origin = 0;
  if (!decode_run_positions({run.payload, block.payload_words}, count, block.span, coding.kp, run.positions, values,
                            origin)) {
    return false;
  }
  const Share share = WarpThreads::share(count);
  if (coding.values != ValueCodec::kUlp) {
    if ((count * kWidth + 31) / 32 != values.count || !values.padded_at(count * kWidth)) return false;
    for (std::uint32_t i = share.begin; i < share.end; ++i) {
      run.positions[i] += origin;
      run.coded[i] = static_cast<T>(values.get_long(i * kWidth, kWidth));
    }
    return true;
  }
  if (count >= values.bits()) return false;
  std::uint32_t signs = values.get(share.begin, share.end - share.begin);
  for (std::uint32_t i = share.begin; i < share.end; ++i, signs >>= 1) {
    run.positions[i] += origin;
    run.coded[i] = ulp_from_magnitude(T{0}, (signs & 1) != 0);
  }
  return decode_run_exceptions(values, count, count, coding.ke, run);
}

/// Decodes a block that warp_decodes() accepts, to run.positions and run.coded. Returns to all lanes whether the block
/// is valid. No barrier is needed between the use of the decoded changes and the next call.
template <class T>
__device__ bool decode_run(const ReceivedBlock& block, RunDecoded<T>& run) {
  const std::uint32_t* const payload = in_global(block.payload);
  for (std::uint32_t w = WarpThreads::rank(); w < block.payload_words + 2; w += 32) {
    run.payload[w] = w < block.payload_words ? payload[w] : 0;
  }
  __syncwarp();
  const bool valid = decode_copied(block, run);
  __syncwarp();
  return valid;
}

}  // namespace sparsecast::cuda
