// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "codec/bits.hpp"
#include "codec/block_coding.hpp"
#include "codec/context_kernels.hpp"
#include "codec/rice_reader.hpp"
#include "core/word.hpp"

namespace sparsecast {
namespace {

[[noreturn]] void wrong_base() {
  throw Error(ErrorCode::kWrongBase, "the weights of a block are not those of the delta's base version");
}

/// Decodes one block. Changes are numbered as they are stored: class by class, and within a class by position.
template <class T>
class ContextDecoder {
 public:
  ContextDecoder(const BlockRef& block, DecodedBlock<T>& out) : block_(block), out_(out), scratch_(out.context) {
    // Each change has a sign and the one of a quotient.
    if (std::uint64_t{block.changed} * 2 > std::uint64_t{block.payload.size()} * 8) BitReader::overrun();
    scratch_.grow_to_decode(block.changed);
  }

  void decode(const OldBits& old) {
    const std::uint64_t used = read_ranks();
    place(old);
    read_values(block_.payload.subspan(used));
    for (std::uint32_t i = 0; i < block_.changed; ++i) {
      out_.coded[i] = static_cast<T>(scratch_.magnitudes[scratch_.numbers[i]]);
    }
  }

  /// Reads the position part, as far as it does not depend on the weights; returns its bytes.
  std::uint64_t read_ranks() {
    const std::uint32_t n = block_.changed;
    BitReader reader(block_.payload);
    classes_.hi = static_cast<std::uint32_t>(reader.get(8));
    classes_.count = static_cast<std::uint32_t>(reader.get(4)) + 1;
    classes_.width = static_cast<std::uint32_t>(reader.get(1)) + 1;
    check_ = static_cast<std::uint32_t>(reader.get(32));
    const auto count_bits = static_cast<std::uint32_t>(bit_width64(n));
    std::uint64_t total = 0;
    begin_[0] = 0;
    for (std::uint32_t c = 0; c < kMostClasses; ++c) {
      if (c + 1 < classes_.count) total += reader.get(count_bits);
      if (total > n) throw Error(ErrorCode::kCorrupt, "more changes in the classes of a block than it has");
      begin_[c + 1] = c + 1 < classes_.count ? static_cast<std::uint32_t>(total) : n;
    }
    std::uint32_t kp[kMostClasses] = {};
    for (std::uint32_t c = 0; c < classes_.count; ++c) {
      if (begin_[c] == begin_[c + 1]) continue;
      kp[c] = static_cast<std::uint32_t>(reader.get(5));
      if (kp[c] > kMaxRiceParameter) throw Error(ErrorCode::kCorrupt, "a Rice parameter is out of range");
    }
    std::uint32_t* ranks = scratch_.ranks.data();
    std::uint64_t remainder_at = reader.position();
    for (std::uint32_t c = 0; c < classes_.count; ++c) reader.skip(std::uint64_t{begin_[c + 1] - begin_[c]} * kp[c]);
    for (std::uint32_t c = 0; c < classes_.count; ++c) {
      const std::uint64_t mask = (std::uint64_t{1} << kp[c]) - 1;
      for (std::uint32_t i = begin_[c]; i < begin_[c + 1]; ++i, remainder_at += kp[c]) {
        ranks[i] = static_cast<std::uint32_t>(reader.peek(remainder_at) & mask);
      }
    }
    // A quotient below 2^22 and remainders below 2^22 add up to less than 2^45.
    const std::uint64_t* quotients = read_quotients(reader, n, kMaxQuotientZeros - kEscape);
    for (std::uint32_t c = 0; c < classes_.count; ++c) {
      std::uint64_t next = 0;
      for (std::uint32_t i = begin_[c]; i < begin_[c + 1]; ++i) {
        const std::uint64_t rank = next + (quotients[i] << kp[c] | ranks[i]);
        if (rank >= block_.span) throw Error(ErrorCode::kCorrupt, "a rank lies outside its block");
        ranks[i] = static_cast<std::uint32_t>(rank);
        next = rank + 1;
      }
    }
    return reader.finish_part();
  }

 private:
  static constexpr std::uint32_t kWidth = 8 * sizeof(T);

  /// Turns ranks into positions and lists the keys of the changes; throws Error{kWrongBase}.
  void place(const OldBits& old) {
    cpu::RankWalk walk;
    walk.ranks = scratch_.ranks.data();
    std::copy_n(begin_.begin(), kMostClasses, walk.next);
    std::copy_n(begin_.begin() + 1, kMostClasses, walk.end);
    std::uint32_t placed = 0;
    std::uint32_t sum = 0;
    scratch_.tile_keys.resize(kTileElems);
    for (std::uint32_t first = 0; first < block_.span; first += kTileElems) {
      const std::uint32_t count = std::min(kTileElems, block_.span - first);
      const std::byte* const words = tile(old, first, count);
      sum += cpu::sum_words(words, count * sizeof(T));
      std::uint8_t* const keys = scratch_.tile_keys.data();
      cpu::read_keys(words, count, old.dtype, keys);
      std::uint32_t* const positions = out_.positions.data() + placed;
      std::uint32_t* const numbers = scratch_.numbers.data() + placed;
      const std::uint32_t found = cpu::place_ranks(keys, count, classes_, walk, positions, numbers);
      for (std::uint32_t i = 0; i < found; ++i) {
        scratch_.keys[numbers[i]] = keys[positions[i]];
        positions[i] += first;
        sum += kPositionCheckFactor * positions[i];
      }
      placed += found;
    }
    if (placed != block_.changed || sum != check_) wrong_base();
  }

  /// Returns the old bits of elements [first, first + count) of the block, one after another.
  const std::byte* tile(const OldBits& old, std::uint32_t first, std::uint32_t count) {
    if (old.view == nullptr) return old.window + first * sizeof(T);
    scratch_.tile_words.resize(kTileElems * sizeof(T));
    gather_elements<T>(old.window, *old.view, block_.first_element + first, count, scratch_.tile_words.data());
    return scratch_.tile_words.data();
  }

  /// Reads `count` quotients with escapes, and the tails that follow them.
  const std::uint64_t* read_quotients(BitReader& reader, std::uint32_t count, std::uint32_t most_tail_bits) {
    ExceptionScratch& scratch = out_.exceptions;
    grow(scratch.zeros, count);
    grow(scratch_.quotients, count);
    read_unary(reader, count, scratch.ones, scratch.zeros.data());
    scratch.list.clear();
    for (std::uint32_t i = 0; i < count; ++i) {
      std::uint64_t quotient = scratch.zeros[i];
      if (quotient >= kEscape) {
        const std::uint32_t tail_bits = scratch.zeros[i] - kEscape;
        if (tail_bits > most_tail_bits) throw Error(ErrorCode::kCorrupt, "a quotient has too many zeros");
        if (tail_bits > 0) scratch.list.push_back({i, tail_bits});
        quotient = kEscape - 1 + (std::uint64_t{1} << tail_bits);
      }
      scratch_.quotients[i] = quotient;
    }
    for (const auto& [index, bits] : scratch.list) scratch_.quotients[index] += reader.get(bits);
    return scratch_.quotients.data();
  }

  /// Reads the value part: coded words, in the order of the numbers, into `magnitudes`.
  void read_values(ConstBytes part) {
    const std::uint32_t n = block_.changed;
    const std::uint8_t* keys = scratch_.keys.data();
    std::vector<std::uint64_t>& magnitudes = scratch_.magnitudes;
    BitReader reader(part);
    ContextValues values;
    values.rice_keys = static_cast<std::uint32_t>(reader.get(9));
    values.scale = static_cast<std::uint32_t>(reader.get(9));
    if (values.rice_keys > kContextKeys) throw Error(ErrorCode::kCorrupt, "a key is out of range");
    const std::uint64_t signs_at = reader.position();
    reader.skip(n);
    std::uint32_t rice = 0;
    std::uint64_t low_at = reader.position();
    std::uint64_t all_low_bits = 0;
    for (std::uint32_t i = 0; i < n; ++i) {
      if (keys[i] >= values.rice_keys) continue;
      ++rice;
      all_low_bits += values.low_bits(keys[i], kWidth);
    }
    reader.skip(all_low_bits);
    for (std::uint32_t i = 0; i < n; ++i) {
      magnitudes[i] = 0;
      if (keys[i] >= values.rice_keys) continue;
      const std::uint32_t bits = values.low_bits(keys[i], kWidth);
      magnitudes[i] = reader.peek_long(low_at, bits);
      low_at += bits;
    }
    read_exceptions(reader, n, block_.coding.ke, kWidth - 1, out_.exceptions);
    for (const auto& [index, bits] : out_.exceptions.list) {
      if (keys[index] < values.rice_keys) {
        throw Error(ErrorCode::kCorrupt, "an exception has a key that is Rice-coded");
      }
      magnitudes[index] = std::uint64_t{1} << bits | reader.get(bits);
    }
    const std::uint64_t* quotients = read_quotients(reader, rice, kWidth - 2);
    for (std::uint32_t i = 0; i < n; ++i) {
      if (keys[i] >= values.rice_keys) continue;
      const std::uint64_t quotient = *quotients++;
      const std::uint32_t low = values.low_bits(keys[i], kWidth);
      if (quotient >> (kWidth - 1 - low) != 0) distance_does_not_fit();
      magnitudes[i] += quotient << low;
    }
    if (reader.finish_part() != part.size()) {
      throw Error(ErrorCode::kCorrupt, "a block's payload has the wrong length");
    }
    constexpr std::uint64_t kHalf = std::uint64_t{1} << (kWidth - 1);
    for (std::uint32_t i = 0; i < n; ++i) {
      const bool down = (reader.peek(signs_at + i) & 1) != 0;
      if (magnitudes[i] >= kHalf - (down ? 0 : 1)) distance_does_not_fit();
      magnitudes[i] = ulp_from_magnitude(static_cast<T>(magnitudes[i]), down);
    }
  }

  const BlockRef& block_;
  DecodedBlock<T>& out_;
  ContextScratch& scratch_;
  ContextClasses classes_;
  std::uint32_t check_ = 0;
  std::array<std::uint32_t, kMostClasses + 1> begin_{};  ///< The first change of each class.
};

}  // namespace

template <class T>
void decode_context(const BlockRef& block, const OldBits& old, DecodedBlock<T>& out) {
  ContextDecoder<T>(block, out).decode(old);
}

template <class T>
void check_context(const BlockRef& block, DecodedBlock<T>& scratch) {
  ContextDecoder<T>(block, scratch).read_ranks();
}

template void decode_context(const BlockRef&, const OldBits&, DecodedBlock<std::uint8_t>&);
template void decode_context(const BlockRef&, const OldBits&, DecodedBlock<std::uint16_t>&);
template void decode_context(const BlockRef&, const OldBits&, DecodedBlock<std::uint32_t>&);
template void decode_context(const BlockRef&, const OldBits&, DecodedBlock<std::uint64_t>&);
template void check_context(const BlockRef&, DecodedBlock<std::uint8_t>&);
template void check_context(const BlockRef&, DecodedBlock<std::uint16_t>&);
template void check_context(const BlockRef&, DecodedBlock<std::uint32_t>&);
template void check_context(const BlockRef&, DecodedBlock<std::uint64_t>&);

}  // namespace sparsecast
