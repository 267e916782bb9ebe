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
// find_exceptions may write this many entries too many.
constexpr std::size_t kIndexSlack = 64;

struct UlpPlan {
  std::uint32_t kv = 0;
  bool lengths = false;
};

/// docs/wire-format.md §5.3, when more than a quarter of the magnitudes are not 0.
template <class T>
UlpPlan plan_magnitudes(const T* coded, std::uint32_t count) {
  constexpr std::uint32_t kWidth = 8 * sizeof(T);
  std::uint32_t by_width[kWidth + 1] = {};
  for (std::uint32_t i = 0; i < count; ++i) ++by_width[bit_width64(ulp_magnitude(coded[i]))];
  UlpPlan best;
  std::uint64_t best_cost = ~std::uint64_t{0};
  for (std::uint32_t kv = 0; kv < kWidth; ++kv) {
    std::uint32_t exceptions = 0;
    const std::uint64_t cost = ulp_cost(by_width, kWidth, count, kv, exceptions);
    if (cost < best_cost) {
      best_cost = cost;
      best = {kv, false};
    }
    if (exceptions == 0) break;
  }
  return lengths_cost(by_width, kWidth, count) < best_cost ? UlpPlan{0, true} : best;
}

/// The form with lengths: signs, lengths, then what is below the magnitudes' highest bits.
template <class T>
void encode_lengths(const T* coded, std::uint32_t count, Bytes& out) {
  constexpr std::uint32_t kWidth = 8 * sizeof(T);
  const std::uint64_t bound = std::uint64_t{count} * (1 + length_field_bits(kWidth) + kWidth) + 64;
  out.assign(padded_bytes(bound) + kSlack, std::byte{0});
  cpu::sign_bits(reinterpret_cast<const std::byte*>(coded), count, sizeof(T), out.data());
  BitWriter writer(out.data(), count);
  for (std::uint32_t i = 0; i < count; ++i) {
    writer.put(static_cast<std::uint64_t>(bit_width64(ulp_magnitude(coded[i]))), length_field_bits(kWidth));
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint64_t magnitude = ulp_magnitude(coded[i]);
    const std::uint32_t bits = bits_below_highest(magnitude);
    if (bits != 0) writer.put_long(magnitude ^ std::uint64_t{1} << bits, bits);
  }
  out.resize(padded_bytes(writer.position()));
}

/// Writes the ulp value part into scratch.values (padded) and sets kv, ke and lengths.
template <class T>
void encode_ulp(const T* coded, std::uint32_t count, EncodeScratch& scratch, Coding& coding) {
  constexpr std::uint64_t kWidth = 8 * sizeof(T);
  if (scratch.exceptions.size() < count + kIndexSlack) scratch.exceptions.resize(count + kIndexSlack);
  const auto* words = reinterpret_cast<const std::byte*>(coded);
  std::uint32_t* index = scratch.exceptions.data();
  std::uint32_t exceptions = cpu::find_exceptions(words, count, sizeof(T), 0, index);
  UlpPlan plan;
  if (std::uint64_t{exceptions} * 4 > count) plan = plan_magnitudes(coded, count);
  if (plan.lengths) {
    coding.lengths = true;
    encode_lengths(coded, count, scratch.values);
    return;
  }
  const std::uint32_t kv = plan.kv;
  if (kv != 0) exceptions = cpu::find_exceptions(words, count, sizeof(T), kv, index);
  const std::uint32_t ke = exceptions_parameter(index, exceptions);

  const std::uint64_t bound =
      count * (2 + std::uint64_t{kv}) + 2 * kWidth + exceptions * (ke + 3 + 2 * (kWidth - kv)) + 64;
  scratch.values.assign(padded_bytes(bound) + kSlack, std::byte{0});
  std::byte* out = scratch.values.data();
  cpu::sign_bits(words, count, sizeof(T), out);
  BitWriter writer(out, count);
  if (kv != 0) {
    const std::uint64_t mask = (std::uint64_t{1} << kv) - 1;
    for (std::uint32_t i = 0; i < count; ++i) writer.put_long(ulp_magnitude(coded[i]) & mask, kv);
  }
  const auto high = [&](std::uint32_t e) { return std::uint64_t{ulp_magnitude(coded[index[e]])} >> kv; };
  put_exceptions(index, exceptions, ke, high, writer);
  scratch.values.resize(padded_bytes(writer.position()));
  coding.kv = kv;
  coding.ke = ke;
}

template <class T>
void encode_values(const BlockChanges<T>& block, EncodeScratch& scratch, Coding& coding) {
  if (coding.values == ValueCodec::kUlp) {
    encode_ulp(block.coded, block.count, scratch, coding);
    return;
  }
  const std::size_t bytes = block.count * sizeof(T);
  scratch.values.assign(padded_bytes(bytes * 8), std::byte{0});
  std::memcpy(scratch.values.data(), block.coded, bytes);
}

void write_packed(const std::uint32_t* gaps, std::uint32_t count, std::uint32_t kp, std::vector<std::uint32_t>& escaped,
                  std::byte* out) {
  BitWriter writer(out, 0);
  if (kp != 0) put_remainders(gaps, count, kp, writer);
  escaped.clear();
  put_quotients(gaps, count, kp, writer, escaped);
  put_tails(escaped, writer);
}

template <class Gap>
void write_gaps(const std::uint32_t* gaps, std::uint32_t count, std::byte* out) {
  for (std::uint32_t i = 0; i < count; ++i) store_word(out, i, static_cast<Gap>(gaps[i]));
}

void write_bitmap(const std::uint32_t* positions, std::uint32_t count, std::byte* out) {
  for (std::uint32_t i = 0; i < count; ++i) {
    out[positions[i] >> 3] |= static_cast<std::byte>(1U << (positions[i] & 7));
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

void write_positions(const std::uint32_t* positions, const std::uint32_t* gaps, std::uint32_t count,
                     const Coding& coding, EncodeScratch& scratch, std::byte* out) {
  switch (coding.positions) {
    case PositionCodec::kIndex32:
      std::memcpy(out, positions, std::size_t{count} * 4);
      break;
    case PositionCodec::kGap16:
      if (coding.kp != 0) {
        write_gaps<std::uint32_t>(gaps, count, out);
      } else {
        write_gaps<std::uint16_t>(gaps, count, out);
      }
      break;
    case PositionCodec::kBitmap:
      write_bitmap(positions, count, out);
      break;
    default:
      write_packed(gaps, count, coding.kp, scratch.escaped, out);
  }
}

/// All words of the block, in the value codec; false when a raw block's unchanged bits are not known.
template <class T>
bool append_dense(const BlockChanges<T>& block, ValueCodec values, Bytes& payload) {
  const bool complete = block.count == block.span;
  if (values == ValueCodec::kRaw && block.current == nullptr && !complete) return false;
  const std::size_t begin = payload.size();
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
Coding encode_block(const BlockChanges<T>& block, PositionMode mode, ValueCodec values, EncodeScratch& scratch,
                    Bytes& payload) {
  Coding coding;
  coding.values = values;
  if (scratch.gaps.size() < block.count) scratch.gaps.resize(block.count);
  std::uint32_t* gaps = scratch.gaps.data();
  list_gaps(block.positions, block.count, gaps);
  const std::uint64_t position_bytes = plan_positions(block.positions, gaps, block.count, block.span, mode, coding);
  encode_values(block, scratch, coding);
  if (std::uint64_t{block.span} * sizeof(T) < position_bytes + scratch.values.size() &&
      append_dense(block, values, payload)) {
    return {PositionCodec::kDense, values, 0, 0, 0};
  }
  const std::size_t begin = payload.size();
  payload.resize(begin + position_bytes + scratch.values.size() + kSlack);
  write_positions(block.positions, gaps, block.count, coding, scratch, payload.data() + begin);
  payload.resize(begin + position_bytes);
  payload.insert(payload.end(), scratch.values.begin(), scratch.values.end());
  return coding;
}

template Coding encode_block(const BlockChanges<std::uint8_t>&, PositionMode, ValueCodec, EncodeScratch&, Bytes&);
template Coding encode_block(const BlockChanges<std::uint16_t>&, PositionMode, ValueCodec, EncodeScratch&, Bytes&);
template Coding encode_block(const BlockChanges<std::uint32_t>&, PositionMode, ValueCodec, EncodeScratch&, Bytes&);
template Coding encode_block(const BlockChanges<std::uint64_t>&, PositionMode, ValueCodec, EncodeScratch&, Bytes&);

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
