// SPDX-License-Identifier: Apache-2.0
#include "codec/context_kernels.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/word.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/context_kernels.cpp"
#include <hwy/foreach_target.h>  // Compiles this file once for each instruction set.
//
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
// Capitals, as Highway has them: the functions that call these have the same words.
// NOLINTBEGIN(readability-identifier-naming)
namespace sparsecast::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using ByteTag = hn::ScalableTag<std::uint8_t>;

/// Elements between two reads of the counts of the classes.
constexpr std::uint32_t kChunk = 256;
/// The class of places behind the last element.
constexpr std::uint8_t kNoClass = 0xFF;

/// The KeysOf functions return how many keys they read; those after the last whole vector are left.
std::uint32_t KeysOf8(const std::uint8_t* words, std::uint32_t count, const ExponentField& field, std::uint8_t* keys) {
#if HWY_TARGET == HWY_SCALAR
  (void)words, (void)count, (void)field, (void)keys;
  return 0;
#else
  const ByteTag d;
  const hn::Repartition<std::uint16_t, ByteTag> pairs;  // Not every instruction set shifts bytes.
  const auto lanes = static_cast<std::uint32_t>(hn::Lanes(d));
  const auto mask = hn::Set(d, static_cast<std::uint8_t>(field.mask));
  std::uint32_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto pair = hn::BitCast(pairs, hn::LoadU(d, words + i));
    const auto shifted = hn::BitCast(d, hn::ShiftRightSame(pair, static_cast<int>(field.shift)));
    hn::StoreU(hn::And(shifted, mask), d, keys + i);
  }
  return i;
#endif
}

template <class T>
std::uint32_t KeysOfWide(const T* words, std::uint32_t count, const ExponentField& field, std::uint8_t* keys) {
  const hn::ScalableTag<T> d;
  const hn::Rebind<std::uint8_t, decltype(d)> bytes;
  const auto lanes = static_cast<std::uint32_t>(hn::Lanes(d));
  const auto mask = hn::Set(d, static_cast<T>(field.mask));
  std::uint32_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto key = hn::And(hn::ShiftRightSame(hn::LoadU(d, words + i), static_cast<int>(field.shift)), mask);
    hn::StoreU(hn::TruncateTo(bytes, key), bytes, keys + i);
  }
  return i;
}

template <class T>
void KeysOf(const std::byte* words, std::uint32_t begin, std::uint32_t count, const ExponentField& field,
            std::uint8_t* keys) {
  for (std::uint32_t i = begin; i < count; ++i) {
    keys[i] = static_cast<std::uint8_t>(key_of(load_word<T>(words, i), field));
  }
}

void ReadKeys(const std::byte* words, std::uint32_t count, DType dtype, std::uint8_t* keys) {
  const ExponentField field = exponent_field(dtype);
  switch (element_size(dtype)) {
    case 1:
      return KeysOf<std::uint8_t>(words, KeysOf8(reinterpret_cast<const std::uint8_t*>(words), count, field, keys),
                                  count, field, keys);
    case 2:
      return KeysOf<std::uint16_t>(words, KeysOfWide(reinterpret_cast<const std::uint16_t*>(words), count, field, keys),
                                   count, field, keys);
    case 4:
      return KeysOf<std::uint32_t>(words, KeysOfWide(reinterpret_cast<const std::uint32_t*>(words), count, field, keys),
                                   count, field, keys);
    default:
      return KeysOf<std::uint64_t>(words, 0, count, field, keys);
  }
}

std::uint32_t SumWords(const std::byte* bytes, std::size_t count) {
  const hn::ScalableTag<std::uint32_t> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto* words = reinterpret_cast<const std::uint32_t*>(bytes);
  const std::size_t whole = count / 4;
  auto first = hn::Zero(d);
  auto second = hn::Zero(d);
  std::size_t i = 0;
  for (; i + 2 * lanes <= whole; i += 2 * lanes) {
    first = hn::Add(first, hn::LoadU(d, words + i));
    second = hn::Add(second, hn::LoadU(d, words + i + lanes));
  }
  // Lane by lane: the compiler's own sum of lanes is one of signed numbers, which must not overflow.
  HWY_ALIGN std::uint32_t sums[HWY_MAX_BYTES / 4];
  hn::Store(hn::Add(first, second), d, sums);
  std::uint32_t total = 0;
  for (std::size_t lane = 0; lane < lanes; ++lane) total += sums[lane];
  for (; i < whole; ++i) total += load_word<std::uint32_t>(bytes, i);
  std::uint32_t last = 0;
  if (count % 4 != 0) std::memcpy(&last, bytes + whole * 4, count % 4);  // There may be no bytes at all.
  return total + last;
}

/// Turns keys into classes, kChunk at a time.
class ClassChunk {
 public:
  explicit ClassChunk(const ContextClasses& classes) : classes_(classes) {}

  /// Loads the classes of the first `count` keys, at most kChunk, followed by kNoClass.
  HWY_INLINE void Load(const std::uint8_t* keys, std::uint32_t count) {
    if (HWY_UNLIKELY(count < kChunk)) {
      std::memset(bytes_, kNoClass, kChunk);
      for (std::uint32_t i = 0; i < count; ++i) bytes_[i] = static_cast<std::uint8_t>(class_of(keys[i], classes_));
      return;
    }
    const ByteTag d;
    const auto hi = hn::Set(d, static_cast<std::uint8_t>(classes_.hi));
    const auto last = hn::Set(d, static_cast<std::uint8_t>(classes_.count - 1));
    const bool pairs = classes_.width == 2;
    for (std::uint32_t i = 0; i < kChunk; i += Lanes()) {
      auto below = hn::SaturatedSub(hi, hn::LoadU(d, keys + i));
      if (pairs) below = hn::AverageRound(below, hn::Zero(d));
      hn::StoreU(hn::Min(below, last), d, bytes_ + i);
    }
  }

  /// Adds the number of elements of each class.
  HWY_INLINE void Count(std::uint32_t* counts) const {
#if HWY_TARGET == HWY_SCALAR
    for (const std::uint8_t c : bytes_) counts[c % kMostClasses] += c < kMostClasses ? 1 : 0;
#else
    const ByteTag d;
    const hn::Repartition<std::uint64_t, ByteTag> wide;
    for (std::uint32_t c = 0; c < classes_.count; ++c) {
      const auto wanted = hn::Set(d, static_cast<std::uint8_t>(c));
      auto found = hn::Zero(d);  // At most kChunk / Lanes() a lane, with 16 lanes or more: it fits.
      for (std::uint32_t i = 0; i < kChunk; i += Lanes()) {
        found = hn::Sub(found, hn::VecFromMask(d, hn::Eq(hn::LoadU(d, bytes_ + i), wanted)));
      }
      counts[c] += static_cast<std::uint32_t>(hn::GetLane(hn::SumOfLanes(wide, hn::SumsOf8(found))));
    }
#endif
  }

  /// Returns the number of elements of class `c` before element `end`.
  HWY_INLINE std::uint32_t CountBefore(std::uint32_t c, std::uint32_t end) const {
    const ByteTag d;
    const auto wanted = hn::Set(d, static_cast<std::uint8_t>(c));
    std::size_t count = 0;
    std::uint32_t i = 0;
    for (; i + Lanes() <= end; i += Lanes()) count += hn::CountTrue(d, hn::Eq(hn::LoadU(d, bytes_ + i), wanted));
    if (i < end) {
      const auto found = hn::Eq(hn::LoadU(d, bytes_ + i), wanted);
      count += hn::CountTrue(d, hn::And(found, hn::FirstN(d, end - i)));
    }
    return static_cast<std::uint32_t>(count);
  }

  /// Returns the `skip`-th element of class `c`, which must exist.
  HWY_INLINE std::uint32_t Find(std::uint32_t c, std::uint32_t skip) const {
    const ByteTag d;
    const auto wanted = hn::Set(d, static_cast<std::uint8_t>(c));
    std::uint32_t i = 0;
    for (;; i += Lanes()) {
      const auto found = static_cast<std::uint32_t>(hn::CountTrue(d, hn::Eq(hn::LoadU(d, bytes_ + i), wanted)));
      if (found > skip) break;
      skip -= found;
    }
    alignas(8) std::uint8_t bits[kChunk / 8] = {};
    hn::StoreMaskBits(d, hn::Eq(hn::LoadU(d, bytes_ + i), wanted), bits);
    for (const std::uint8_t* word = bits;; word += 8, i += 64) {
      std::uint64_t mask;
      std::memcpy(&mask, word, 8);
      const auto found = static_cast<std::uint32_t>(std::popcount(mask));
      if (found <= skip) {
        skip -= found;
        continue;
      }
      for (; skip > 0; --skip) mask &= mask - 1;
      return i + static_cast<std::uint32_t>(std::countr_zero(mask));
    }
  }

  std::uint8_t operator[](std::uint32_t i) const { return bytes_[i]; }

 private:
  static std::uint32_t Lanes() { return static_cast<std::uint32_t>(hn::Lanes(ByteTag())); }

  ContextClasses classes_;
  alignas(64) std::uint8_t bytes_[kChunk] = {};
};

void RankChanges(const std::uint8_t* keys, std::uint32_t span, const ContextClasses& classes,
                 const std::uint32_t* positions, std::uint32_t count, std::uint8_t* class_of_change,
                 std::uint32_t* ranks) {
  ClassChunk chunk(classes);
  std::uint32_t before[kMostClasses] = {};
  std::uint32_t i = 0;
  for (std::uint32_t first = 0; first < span && i < count; first += kChunk) {
    const std::uint32_t length = std::min(kChunk, span - first);
    chunk.Load(keys + first, length);
    for (; i < count && positions[i] - first < length; ++i) {
      const std::uint8_t c = chunk[positions[i] - first];
      class_of_change[i] = c;
      ranks[i] = before[c] + chunk.CountBefore(c, positions[i] - first);
    }
    chunk.Count(before);
  }
}

std::uint32_t PlaceRanks(const std::uint8_t* keys, std::uint32_t count, const ContextClasses& classes, RankWalk& walk,
                         std::uint32_t* positions, std::uint32_t* numbers) {
  ClassChunk chunk(classes);
  std::uint32_t* out = positions;
  std::uint32_t number_at[kChunk];
  for (std::uint32_t first = 0; first < count; first += kChunk) {
    chunk.Load(keys + first, std::min(kChunk, count - first));
    std::uint32_t after[kMostClasses];
    std::memcpy(after, walk.before, sizeof(after));
    chunk.Count(after);
    std::uint64_t changed[kChunk / 64] = {};
    for (std::uint32_t c = 0; c < classes.count; ++c) {
      for (std::uint32_t& i = walk.next[c]; i < walk.end[c] && walk.ranks[i] < after[c]; ++i) {
        const std::uint32_t at = chunk.Find(c, walk.ranks[i] - walk.before[c]);
        changed[at / 64] |= std::uint64_t{1} << (at % 64);
        number_at[at] = i;
      }
    }
    std::memcpy(walk.before, after, sizeof(after));
    for (std::uint32_t w = 0; w < kChunk / 64; ++w) {
      for (std::uint64_t bits = changed[w]; bits != 0; bits &= bits - 1) {
        const std::uint32_t at = w * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
        *out++ = first + at;
        *numbers++ = number_at[at];
      }
    }
  }
  return static_cast<std::uint32_t>(out - positions);
}

}  // namespace sparsecast::cpu::HWY_NAMESPACE
// NOLINTEND(readability-identifier-naming)
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsecast::cpu {

HWY_EXPORT(ReadKeys);
HWY_EXPORT(SumWords);
HWY_EXPORT(RankChanges);
HWY_EXPORT(PlaceRanks);

void read_keys(const std::byte* words, std::uint32_t count, DType dtype, std::uint8_t* keys) {
  HWY_DYNAMIC_DISPATCH(ReadKeys)(words, count, dtype, keys);
}

std::uint32_t sum_words(const std::byte* bytes, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(SumWords)(bytes, count);
}

void rank_changes(const std::uint8_t* keys, std::uint32_t span, const ContextClasses& classes,
                  const std::uint32_t* positions, std::uint32_t count, std::uint8_t* class_of_change,
                  std::uint32_t* ranks) {
  HWY_DYNAMIC_DISPATCH(RankChanges)(keys, span, classes, positions, count, class_of_change, ranks);
}

std::uint32_t place_ranks(const std::uint8_t* keys, std::uint32_t count, const ContextClasses& classes, RankWalk& walk,
                          std::uint32_t* positions, std::uint32_t* numbers) {
  return HWY_DYNAMIC_DISPATCH(PlaceRanks)(keys, count, classes, walk, positions, numbers);
}

}  // namespace sparsecast::cpu
#endif  // HWY_ONCE
