// SPDX-License-Identifier: Apache-2.0
#include "codec/block_coding.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <system_error>
#include <utility>

#include "codec/bits.hpp"
#include "codec/codec_common.hpp"
#include "codec/kernels.hpp"
#include "codec/rice_writer.hpp"
#include "core/word.hpp"
#include "sparsecast/codec.hpp"

namespace sparsecast {
namespace {

// BitWriter may touch 8 bytes beyond its last bit.
constexpr std::size_t kSlack = 8;
// find_exceptions may write this many entries beyond the last.
constexpr std::size_t kIndexSlack = 64;

struct UlpPlan {
  std::uint32_t kv = 0;
  bool lengths = false;
};

/// docs/wire-format.md §5.3, when more than a quarter of the magnitudes are not 0. `width`: bits of an element.
template <class Word>
UlpPlan plan_magnitudes(const Word* magnitudes, std::uint32_t count, std::uint32_t width) {
  std::uint32_t by_width[8 * sizeof(Word) + 1] = {};
  cpu::count_widths(magnitudes, count, by_width);
  UlpPlan best;
  std::uint64_t best_cost = ~std::uint64_t{0};
  for (std::uint32_t kv = 0; kv < width; ++kv) {
    std::uint32_t exceptions = 0;
    const std::uint64_t cost = ulp_cost(by_width, width, count, kv, exceptions);
    if (cost < best_cost) {
      best_cost = cost;
      best = {kv, false};
    }
    if (exceptions == 0) break;
  }
  return lengths_cost(by_width, width, count) < best_cost ? UlpPlan{0, true} : best;
}

/// Appends the ulp value part (padded) and sets kv, ke and lengths. `quick`: kv is that of a quick block.
template <class T, class Word>
void append_ulp(const T* coded, std::uint32_t count, bool quick, EncodeScratch& scratch, UlpScratch<Word>& ulp,
                Coding& coding, Bytes& payload) {
  constexpr std::uint32_t kWidth = 8 * sizeof(T);
  const auto* words = reinterpret_cast<const std::byte*>(coded);
  if (scratch.exceptions.size() < count + kIndexSlack) scratch.exceptions.resize(count + kIndexSlack);
  std::uint32_t* index = scratch.exceptions.data();
  UlpPlan plan;
  std::uint32_t exceptions = 0;
  if (quick) {
    plan.kv = cpu::least_low_bits(words, count, sizeof(T), quick_exceptions(count));
  } else {
    exceptions = cpu::find_exceptions(words, count, sizeof(T), 0, index);
    if (std::uint64_t{exceptions} * 4 > count) {
      ulp.magnitudes.resize(std::max<std::size_t>(ulp.magnitudes.size(), count));
      cpu::list_magnitudes(coded, count, sizeof(T), ulp.magnitudes.data());
      plan = plan_magnitudes(ulp.magnitudes.data(), count, kWidth);
    }
  }
  if (quick || plan.kv != 0) exceptions = cpu::find_exceptions(words, count, sizeof(T), plan.kv, index);
  coding.lengths = plan.lengths;
  coding.kv = plan.kv;
  coding.ke = plan.lengths ? 0 : exceptions_parameter(index, exceptions);

  std::uint64_t bound = std::uint64_t{count} * (2 + plan.kv) + 64;
  if (plan.lengths) {
    bound += std::uint64_t{count} * (length_field_bits(kWidth) + kWidth);
  } else {
    bound += std::uint64_t{2} * kWidth + std::uint64_t{exceptions} * (coding.ke + 3 + 2 * (kWidth - plan.kv));
  }
  const std::size_t begin = payload.size();
  payload.resize(begin + padded_bytes(bound) + kSlack);
  cpu::sign_bits(words, count, sizeof(T), payload.data() + begin);
  BitWriter writer(payload.data() + begin, count);
  if (plan.lengths) {
    cpu::put_widths(ulp.magnitudes.data(), count, length_field_bits(kWidth), writer);
    cpu::put_tails(ulp.magnitudes.data(), count, writer);
  } else {
    cpu::put_low_bits(coded, count, plan.kv, writer);
    ulp.high.resize(std::max<std::size_t>(ulp.high.size(), exceptions));
    for (std::uint32_t e = 0; e < exceptions; ++e) ulp.high[e] = Word{ulp_magnitude(coded[index[e]])} >> plan.kv;
    scratch.exception_gaps.resize(std::max<std::size_t>(scratch.exception_gaps.size(), exceptions));
    put_exceptions(index, exceptions, coding.ke, ulp.high.data(), scratch.exception_gaps.data(), writer);
  }
  payload.resize(begin + padded_bytes(writer.position()));
}

template <class T>
void append_values(const BlockChanges<T>& block, bool quick, EncodeScratch& scratch, Coding& coding, Bytes& payload) {
  if (coding.values == ValueCodec::kUlp) {
    if constexpr (sizeof(T) == 8) {
      append_ulp(block.coded, block.count, quick, scratch, scratch.ulp64, coding, payload);
    } else {
      append_ulp(block.coded, block.count, quick, scratch, scratch.ulp32, coding, payload);
    }
    return;
  }
  const std::size_t begin = payload.size();
  const std::size_t bytes = block.count * sizeof(T);
  payload.resize(begin + padded_bytes(bytes * 8));
  std::memcpy(payload.data() + begin, block.coded, bytes);
}

void write_packed(const std::uint32_t* gaps, std::uint32_t count, std::uint32_t kp, std::vector<std::uint32_t>& escaped,
                  std::byte* out) {
  BitWriter writer(out, 0);
  cpu::put_fields(gaps, count, kp, writer);
  escaped.clear();
  cpu::put_quotients(gaps, count, kp, writer, escaped);
  put_escaped_tails(escaped, writer);
}

template <class Gap>
void write_gaps(const std::uint32_t* gaps, std::uint32_t count, std::byte* out) {
  for (std::uint32_t i = 0; i < count; ++i) store_word(out, i, static_cast<Gap>(gaps[i]));
}

void write_bitmap(const std::uint32_t* positions, std::uint32_t count, std::byte* out) {
  // A word of the bitmap is stored once, so that no change waits for the store of the one before.
  for (std::uint32_t i = 0; i < count;) {
    const std::uint32_t at = positions[i] >> 5;
    std::uint32_t word = 0;
    for (; i < count && positions[i] >> 5 == at; ++i) word |= 1U << (positions[i] & 31);
    store_word(out, at, word);
  }
}

/// Chooses the position codec among what `mode` allows (without dense) and returns the part's padded bytes.
std::uint64_t plan_positions(const std::uint32_t* positions, const std::uint32_t* gaps, std::uint32_t count,
                             std::uint32_t span, PositionMode mode, Coding& coding) {
  const std::uint64_t bitmap_bytes = padded_bytes(span);
  switch (mode) {
    case PositionMode::kIndex32:
      coding.positions = PositionCodec::kIndex32;
      return std::uint64_t{count} * 4;
    case PositionMode::kGap16: {
      coding.positions = PositionCodec::kGap16;
      coding.kp = *std::max_element(gaps, gaps + count) > 0xFFFF ? 1 : 0;
      return padded_bytes(std::uint64_t{count} * (coding.kp != 0 ? 32 : 16));
    }
    case PositionMode::kBitmap:
      coding.positions = PositionCodec::kBitmap;
      return bitmap_bytes;
    default: {
      coding.positions = PositionCodec::kPacked;
      const std::uint64_t bytes = padded_bytes(choose_kp(positions, gaps, count, coding.kp));
      if (mode == PositionMode::kPacked || bytes <= bitmap_bytes) return bytes;
      coding.positions = PositionCodec::kBitmap;
      coding.kp = 0;
      return bitmap_bytes;
    }
  }
}

/// Appends a position part of `bytes` bytes.
template <class T>
void append_positions(const BlockChanges<T>& block, const Coding& coding, std::uint64_t bytes, EncodeScratch& scratch,
                      Bytes& payload) {
  const std::uint32_t* gaps = scratch.gaps.data();
  const std::size_t begin = payload.size();
  payload.resize(begin + bytes + kSlack);
  std::byte* out = payload.data() + begin;
  switch (coding.positions) {
    case PositionCodec::kIndex32:
      std::memcpy(out, block.positions, std::size_t{block.count} * 4);
      break;
    case PositionCodec::kGap16:
      if (coding.kp != 0) {
        write_gaps<std::uint32_t>(gaps, block.count, out);
      } else {
        write_gaps<std::uint16_t>(gaps, block.count, out);
      }
      break;
    case PositionCodec::kBitmap:
      if (block.bitmap != nullptr) {
        std::memcpy(out, block.bitmap, (block.span + 7) / 8);
      } else {
        write_bitmap(block.positions, block.count, out);
      }
      break;
    default:
      write_packed(gaps, block.count, coding.kp, scratch.escaped, out);
  }
  payload.resize(begin + bytes);
}

/// Replaces the payload after `begin` by all words of the block, in the value codec. Returns false, with nothing done,
/// when a raw block's unchanged bits are not known.
template <class T>
bool replace_by_dense(const BlockChanges<T>& block, ValueCodec values, std::size_t begin, Bytes& payload) {
  const bool complete = block.count == block.span;
  if (values == ValueCodec::kRaw && block.current == nullptr && !complete) return false;
  payload.resize(begin);
  payload.resize(begin + padded_bytes(std::uint64_t{block.span} * sizeof(T) * 8));
  std::byte* out = payload.data() + begin;
  if (values == ValueCodec::kRaw && block.current != nullptr) {
    std::memcpy(out, block.current, block.span * sizeof(T));
  } else {
    for (std::uint32_t i = 0; i < block.count; ++i) store_word(out, block.positions[i], block.coded[i]);
  }
  return true;
}

}  // namespace

template <class T>
Coding encode_block(const BlockChanges<T>& block, const BlockRules& rules, EncodeScratch& scratch, Bytes& payload) {
  Coding coding;
  coding.values = rules.values;
  const bool quick = rules.quick && is_quick_block(block.count, block.span);
  std::uint64_t position_bytes = padded_bytes(block.span);
  if (quick) {
    coding.positions = PositionCodec::kBitmap;
  } else {
    scratch.gaps.resize(std::max<std::size_t>(scratch.gaps.size(), block.count));
    cpu::list_gaps(block.positions, block.count, scratch.gaps.data());
    position_bytes =
        plan_positions(block.positions, scratch.gaps.data(), block.count, block.span, rules.positions, coding);
  }
  const std::size_t begin = payload.size();
  append_positions(block, coding, position_bytes, scratch, payload);
  append_values(block, quick, scratch, coding, payload);
  if (std::uint64_t{block.span} * sizeof(T) < payload.size() - begin &&
      replace_by_dense(block, rules.values, begin, payload)) {
    return {PositionCodec::kDense, rules.values, 0, 0, 0};
  }
  return coding;
}

template Coding encode_block(const BlockChanges<std::uint8_t>&, const BlockRules&, EncodeScratch&, Bytes&);
template Coding encode_block(const BlockChanges<std::uint16_t>&, const BlockRules&, EncodeScratch&, Bytes&);
template Coding encode_block(const BlockChanges<std::uint32_t>&, const BlockRules&, EncodeScratch&, Bytes&);
template Coding encode_block(const BlockChanges<std::uint64_t>&, const BlockRules&, EncodeScratch&, Bytes&);

namespace {

constexpr std::array<std::string_view, 6> kPositionNames = {"index32", "gap16", "packed", "bitmap", "dense", "context"};
constexpr std::array<std::string_view, 3> kValueNames = {"raw", "xor", "ulp"};
constexpr std::array<std::string_view, 6> kModeNames = {"auto", "packed", "gap16", "index32", "bitmap", "context"};

template <class Enum, std::size_t N>
std::optional<Enum> find_name(const std::array<std::string_view, N>& names, std::string_view name) {
  for (std::size_t i = 0; i < N; ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

}  // namespace

std::string_view to_string(PositionCodec codec) noexcept { return kPositionNames[static_cast<std::size_t>(codec)]; }
std::string_view to_string(ValueCodec codec) noexcept { return kValueNames[static_cast<std::size_t>(codec)]; }
std::string_view to_string(PositionMode mode) noexcept { return kModeNames[static_cast<std::size_t>(mode)]; }

std::optional<PositionMode> position_mode_from_name(std::string_view name) noexcept {
  return find_name<PositionMode>(kModeNames, name);
}
std::optional<ValueCodec> value_codec_from_name(std::string_view name) noexcept {
  return find_name<ValueCodec>(kValueNames, name);
}

std::optional<Objective> objective_from_name(std::string_view name) noexcept {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"Mb/s", 1e6 / 8}, {"Gb/s", 1e9 / 8}, {"MB/s", 1e6}, {"GB/s", 1e9}};
  if (name == "speed") return Objective::speed();
  if (name == "size") return Objective::size();
  double number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const std::string_view unit(end, static_cast<std::size_t>(name.data() + name.size() - end));
  if (error != std::errc() || !std::isfinite(number) || !(number > 0)) return std::nullopt;
  for (const auto& [known, bytes] : kUnits) {
    if (unit == known) return Objective::link(number * bytes);
  }
  return std::nullopt;
}

}  // namespace sparsecast
