// SPDX-License-Identifier: Apache-2.0
#pragma once

// The value part of a `context` block (docs/wire-format.md §4.3), read by all threads of a CTA together, once the keys
// of the changes are known. It walks over the changes three times: for the bits below the quotients, the exceptions,
// and the quotients.

#include "cuda/apply/context_places.cuh"
#include "cuda/apply/decode_exceptions.cuh"

namespace sparsecast::cuda {

/// Decodes the value part of a `context` block to the coded words of its changes.
template <class T>
class ContextValueDecoder {
 public:
  /// Makes a decoder of `values`, the value part of a block with `count` changes. `changes` holds their packed
  /// PlacedChanges, in stored order. `words` receives the coded words of the block's entries. decode() records input
  /// errors in `found`.
  __device__ ContextValueDecoder(const BitString& values, std::uint32_t count, const std::uint32_t* changes, T* words,
                                 PositionsShared& shared, FirstInputError& found)
      : values_(values), count_(count), changes_(changes), words_(words), shared_(shared), found_(found) {}

  /// Writes the coded words of all changes. `exception_rice` is the Rice parameter of the exceptions' gaps. After an
  /// input error, which found.any() reports to all threads, the words are not valid.
  __device__ void decode(std::uint32_t exception_rice, ExceptionsShared& shared) {
    parameters_.rice_keys = values_.get(0, 9);
    parameters_.scale = values_.get(9, 9);
    found_.require(parameters_.rice_keys <= kContextKeys, InputError::kExceptions);
    if (kSigns + std::uint64_t{count_} > values_.bits()) found_.refuse(InputError::kOverrun);
    if (found_.any()) return;
    std::uint32_t rice_changes = 0;
    const std::uint64_t lows = read_lows(rice_changes);
    ExceptionDecoder exceptions({count_, exception_rice, kWidth - 1}, values_, shared, shared_.scan, found_);
    const std::uint64_t quotients = exceptions.locate(lows);
    if (found_.any()) return;
    exceptions.read(count_, [&](std::uint32_t index, std::uint64_t high) {
      const PlacedChange change = PlacedChange::unpack(changes_[index]);
      found_.require(change.key >= parameters_.rice_keys, InputError::kExceptions);
      words_[change.entry] = static_cast<T>(high);
    });
    const QuotientsEnd codes = walk_quotients(values_, static_cast<std::uint32_t>(quotients), rice_changes, kMostZeros,
                                              shared_, found_, [](std::uint32_t, std::uint32_t) {});
    if (found_.any()) return;
    end_values(codes.end);
    add_quotients(static_cast<std::uint32_t>(quotients), codes.tails);
  }

 private:
  static constexpr std::uint32_t kWidth = 8 * sizeof(T);
  static constexpr std::uint32_t kSigns = 2 * 9;  ///< Bit number, in the value part, of the first sign.
  static constexpr std::uint32_t kMostZeros = kEscape + kWidth - 2;

  __device__ bool is_rice(const PlacedChange& change) const { return change.key < parameters_.rice_keys; }

  __device__ void end_values(std::uint64_t bits) {
    const std::uint64_t words = (bits + 31) / 32;
    if (words != values_.count) {
      return found_.refuse(words > values_.count ? InputError::kOverrun : InputError::kLength);
    }
    found_.require(values_.padded_at(static_cast<std::uint32_t>(bits)), InputError::kPadding);
  }

  /// Sets each word to the bits that are stored below its quotient, or to 0 if it has no quotient. Returns the bit
  /// number after all these bits. Sets `rice_changes` to the number of quotients.
  __device__ std::uint64_t read_lows(std::uint32_t& rice_changes) {
    std::uint64_t at = kSigns + std::uint64_t{count_};
    rice_changes = 0;
    for (std::uint32_t first = 0; first < count_; first += kDecodeChunk) {
      const std::uint32_t own = first + threadIdx.x * kEachDecoded;
      PlacedChange changes[kEachDecoded];
      std::uint32_t low[kEachDecoded] = {};
      std::uint64_t sums = 0;  // Number of bits (upper half) and of quotients (lower half).
      SPARSECAST_UNROLL
      for (std::uint32_t e = 0; e < kEachDecoded; ++e) {
        if (own + e >= count_) continue;
        changes[e] = PlacedChange::unpack(changes_[own + e]);
        if (!is_rice(changes[e])) continue;
        low[e] = parameters_.low_bits(changes[e].key, kWidth);
        sums += std::uint64_t{low[e]} << 32 | 1;
      }
      // A block has fewer than 2^28 of these bits.
      const auto scanned = cta_scan(shared_.scan, sums);
      auto bit = static_cast<std::uint32_t>(at + (scanned.before >> 32));
      SPARSECAST_UNROLL
      for (std::uint32_t e = 0; e < kEachDecoded; ++e) {
        if (own + e >= count_) continue;
        words_[changes[e].entry] = static_cast<T>(values_.get_long(bit, low[e]));
        bit += low[e];
      }
      at += scanned.total >> 32;
      rice_changes += static_cast<std::uint32_t>(scanned.total);
    }
    return at;
  }

  /// Adds the quotients to the words, which then are magnitudes, and turns the magnitudes into coded words. The
  /// quotients begin at bit number `at`, their tails at bit number `tail_bit`.
  __device__ void add_quotients(std::uint32_t at, std::uint32_t tail_bit) {
    for (std::uint32_t first = 0; first < count_; first += kDecodeChunk) {
      const std::uint32_t own = first + threadIdx.x * kEachDecoded;
      PlacedChange changes[kEachDecoded];
      std::uint32_t quotients = 0;
      SPARSECAST_UNROLL
      for (std::uint32_t e = 0; e < kEachDecoded; ++e) {
        if (own + e >= count_) continue;
        changes[e] = PlacedChange::unpack(changes_[own + e]);
        quotients += is_rice(changes[e]) ? 1 : 0;
      }
      const auto ranks = cta_scan(shared_.scan, quotients);
      if (ranks.total != 0) find_ones(values_, at, ranks.total, kMostZeros, shared_.positions, shared_.scan);
      std::uint32_t zeros[kEachDecoded] = {};
      std::uint32_t tails = 0;
      std::uint32_t rank = ranks.before;
      SPARSECAST_UNROLL
      for (std::uint32_t e = 0; e < kEachDecoded; ++e) {
        if (own + e >= count_ || !is_rice(changes[e])) continue;
        zeros[e] = zeros_before(shared_.positions, rank++, at);
        tails += zeros[e] > kEscape ? zeros[e] - kEscape : 0;
      }
      if (ranks.total != 0) at = shared_.positions[ranks.total - 1] + 1;
      const auto scanned = cta_scan(shared_.scan, tails);
      std::uint32_t bit = tail_bit + scanned.before;
      tail_bit += scanned.total;
      SPARSECAST_UNROLL
      for (std::uint32_t e = 0; e < kEachDecoded; ++e) {
        if (own + e >= count_) continue;
        std::uint64_t magnitude = words_[changes[e].entry];
        if (is_rice(changes[e])) {
          std::uint64_t quotient = zeros[e];
          if (zeros[e] >= kEscape) {
            const std::uint32_t tail_bits = (zeros[e] - kEscape) % 64;
            quotient = kEscape - 1 + (std::uint64_t{1} << tail_bits) + values_.get_long(bit, tail_bits);
            bit += tail_bits;
          }
          const std::uint32_t low = parameters_.low_bits(changes[e].key, kWidth);
          found_.require(quotient >> (kWidth - 1 - low) == 0, InputError::kMagnitude);
          magnitude += quotient << low;
        }
        const bool down = values_.get(kSigns + own + e, 1) != 0;
        found_.require(magnitude < (std::uint64_t{1} << (kWidth - 1)) - (down ? 0 : 1), InputError::kMagnitude);
        words_[changes[e].entry] = ulp_from_magnitude(static_cast<T>(magnitude), down);
      }
    }
  }

  const BitString values_;
  const std::uint32_t count_;
  const std::uint32_t* const changes_;
  T* const words_;
  PositionsShared& shared_;
  FirstInputError& found_;
  ContextValues parameters_;
};

}  // namespace sparsecast::cuda
