// SPDX-License-Identifier: Apache-2.0
#include "reference/reference_blocks.hpp"

#include <algorithm>
#include <bit>
#include <optional>

namespace sparsecast {
namespace {

using Words = std::vector<std::uint64_t>;

std::uint64_t width_of(std::uint64_t x) { return static_cast<std::uint64_t>(std::bit_width(x)); }

/// §1: a bit string, least significant bit of every field first.
class BitString {
 public:
  void put_field(std::uint64_t value, std::uint64_t width) {
    for (std::uint64_t i = 0; i < width; ++i) bits_.push_back((value >> i & 1) != 0);
  }
  void put_unary(std::uint64_t quotient) {
    bits_.insert(bits_.end(), quotient, false);
    bits_.push_back(true);
  }
  void put_exp_golomb(std::uint64_t v) {
    const std::uint64_t b = width_of(v + 1);
    put_unary(b - 1);
    put_field(v + 1, b - 1);
  }
  void append(const BitString& more) { bits_.insert(bits_.end(), more.bits_.begin(), more.bits_.end()); }
  std::size_t size() const { return bits_.size(); }
  /// Padded with zero bits to a multiple of 4 bytes.
  Bytes bytes() const {
    Bytes out((bits_.size() + 31) / 32 * 4);
    for (std::size_t i = 0; i < bits_.size(); ++i) {
      if (bits_[i]) out[i / 8] |= static_cast<std::byte>(1U << (i % 8));
    }
    return out;
  }

 private:
  std::vector<bool> bits_;
};

/// Content of one block. Positions are relative to its first element.
struct BlockContent {
  Words positions;
  Words words;      ///< Coded, of the changed elements.
  Words all_words;  ///< Coded, of every element.
  std::uint64_t element_bytes = 0;

  std::uint64_t n() const { return positions.size(); }
  std::uint64_t span() const { return all_words.size(); }
  std::uint64_t width() const { return 8 * element_bytes; }
  /// §4.1
  Words gaps() const {
    Words out;
    for (std::size_t i = 0; i < positions.size(); ++i) {
      out.push_back(i == 0 ? positions[0] : positions[i] - positions[i - 1] - 1);
    }
    return out;
  }
};

struct Part {
  Bytes bytes;
  std::uint32_t parameters = 0;  ///< kp, kv and ke, where they stand in the coding word.
};

/// §4.2
std::uint64_t ordered_form(std::uint64_t bits, std::uint64_t width, bool floating) {
  if (!floating) return bits;
  const std::uint64_t sign = std::uint64_t{1} << (width - 1);
  const std::uint64_t all = sign | (sign - 1);
  return (bits & sign) == 0 ? bits ^ sign : bits ^ all;
}

std::uint64_t coded_word(ValueCodec values, std::uint64_t new_bits, std::uint64_t old_bits, DType dtype) {
  const std::uint64_t width = 8 * element_size(dtype);
  const std::uint64_t sign = std::uint64_t{1} << (width - 1);
  if (values == ValueCodec::kRaw) return new_bits;
  if (values == ValueCodec::kXor) return new_bits ^ old_bits;
  const bool floating = is_floating(dtype);
  return (ordered_form(new_bits, width, floating) - ordered_form(old_bits, width, floating)) & (sign | (sign - 1));
}

/// §5.2
std::uint64_t rice_rule(std::uint64_t sum, std::uint64_t n) {
  const std::uint64_t q = sum * 123 / (128 * n);
  return q == 0 ? 0 : width_of(q) - 1;
}

Part index32_part(const BlockContent& block) {
  BitString bits;
  for (const std::uint64_t p : block.positions) bits.put_field(p, 32);
  return {bits.bytes(), 0};
}

Part gap16_part(const BlockContent& block) {
  const Words gaps = block.gaps();
  const std::uint32_t kp = std::ranges::max(gaps) > 65535 ? 1 : 0;
  BitString bits;
  for (const std::uint64_t gap : gaps) bits.put_field(gap, kp == 1 ? 32 : 16);
  return {bits.bytes(), kp << 5};
}

/// §4.1, packed
BitString packed_bits(const Words& gaps, std::uint64_t kp) {
  BitString bits;
  for (const std::uint64_t gap : gaps) bits.put_field(gap, kp);
  BitString tails;
  for (const std::uint64_t gap : gaps) {
    const std::uint64_t q = gap >> kp;
    const std::uint64_t t = q < 8 ? 0 : width_of(q - 7) - 1;
    bits.put_unary(q < 8 ? q : 8 + t);
    tails.put_field(q - 7, t);
  }
  bits.append(tails);
  return bits;
}

Part packed_part(const BlockContent& block) {
  const Words gaps = block.gaps();
  // §5.2
  std::uint64_t kp = rice_rule(block.positions.back() + 1 - block.n(), block.n());
  BitString bits = packed_bits(gaps, kp);
  while (kp > 0) {
    BitString lower = packed_bits(gaps, kp - 1);
    if (lower.size() >= bits.size()) break;
    bits = std::move(lower);
    --kp;
  }
  return {bits.bytes(), static_cast<std::uint32_t>(kp) << 5};
}

Part bitmap_part(const BlockContent& block) {
  std::vector<bool> changed(block.span());
  for (const std::uint64_t p : block.positions) changed[p] = true;
  BitString bits;
  for (const bool bit : changed) bits.put_field(bit ? 1 : 0, 1);
  return {bits.bytes(), 0};
}

Part words_part(const Words& words, std::uint64_t width) {
  BitString bits;
  for (const std::uint64_t word : words) bits.put_field(word, width);
  return {bits.bytes(), 0};
}

/// §5.3. Returns no kv when the magnitudes are written with their lengths.
std::optional<std::uint64_t> choose_kv(const Words& magnitudes, std::uint64_t width) {
  const std::uint64_t n = magnitudes.size();
  const auto not_zero = static_cast<std::uint64_t>(std::ranges::count_if(magnitudes, [](auto m) { return m != 0; }));
  if (4 * not_zero <= n) return 0;
  std::uint64_t best = 0;
  std::uint64_t best_cost = ~std::uint64_t{0};
  for (std::uint64_t kv = 0; kv < width; ++kv) {
    std::uint64_t exceptions = 0;
    std::uint64_t cost = n * kv;
    for (const std::uint64_t m : magnitudes) {
      if ((m >> kv) == 0) continue;
      ++exceptions;
      cost += 2 * width_of(m >> kv) - 1;
    }
    if (exceptions != 0) {
      const std::uint64_t k = rice_rule(n - exceptions, exceptions);
      cost += exceptions * (1 + k) + ((n - exceptions) >> k);
    }
    if (cost < best_cost) {
      best = kv;
      best_cost = cost;
    }
  }
  std::uint64_t cost_with_lengths = n * (width_of(width) - 1);
  for (const std::uint64_t m : magnitudes) cost_with_lengths += m < 2 ? 0 : width_of(m) - 1;
  if (cost_with_lengths < best_cost) return std::nullopt;
  return best;
}

/// §4.2, ulp under a position codec other than dense.
Part ulp_part(const BlockContent& block) {
  const std::uint64_t width = block.width();
  const std::uint64_t modulus_minus_one = width == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << width) - 1;
  Words signs;
  Words magnitudes;
  for (const std::uint64_t c : block.words) {
    signs.push_back(c >> (width - 1));
    magnitudes.push_back(signs.back() == 0 ? c - 1 : modulus_minus_one - c);
  }
  BitString bits;
  for (const std::uint64_t sign : signs) bits.put_field(sign, 1);
  const std::optional<std::uint64_t> chosen = choose_kv(magnitudes, width);
  if (!chosen) {
    for (const std::uint64_t m : magnitudes) bits.put_field(width_of(m), width_of(width) - 1);
    for (const std::uint64_t m : magnitudes) bits.put_field(m, m == 0 ? 0 : width_of(m) - 1);
    return {bits.bytes(), 1U << 21};
  }
  const std::uint64_t kv = *chosen;
  Words exceptions;
  for (std::size_t i = 0; i < magnitudes.size(); ++i) {
    if ((magnitudes[i] >> kv) != 0) exceptions.push_back(i);
  }
  const std::uint64_t count = exceptions.size();
  const std::uint64_t ke = count == 0 ? 0 : rice_rule(exceptions.back() + 1 - count, count);

  for (const std::uint64_t m : magnitudes) bits.put_field(m, kv);
  bits.put_exp_golomb(count);
  Words g;
  Words h;
  for (std::size_t j = 0; j < count; ++j) {
    g.push_back(j == 0 ? exceptions[0] : exceptions[j] - exceptions[j - 1] - 1);
    h.push_back(magnitudes[exceptions[j]] >> kv);
  }
  for (const std::uint64_t gap : g) bits.put_field(gap, ke);
  for (const std::uint64_t gap : g) bits.put_unary(gap >> ke);
  for (const std::uint64_t high : h) bits.put_unary(width_of(high) - 1);
  for (const std::uint64_t high : h) bits.put_field(high, width_of(high) - 1);
  return {bits.bytes(), static_cast<std::uint32_t>(kv << 10 | ke << 16)};
}

struct Choice {
  PositionCodec codec;
  Part part;
};

/// §5.4, before dense is weighed.
Choice position_choice(const BlockContent& block, PositionMode mode) {
  switch (mode) {
    case PositionMode::kIndex32:
      return {PositionCodec::kIndex32, index32_part(block)};
    case PositionMode::kGap16:
      return {PositionCodec::kGap16, gap16_part(block)};
    case PositionMode::kBitmap:
      return {PositionCodec::kBitmap, bitmap_part(block)};
    case PositionMode::kPacked:
      return {PositionCodec::kPacked, packed_part(block)};
    case PositionMode::kAuto:
      break;
  }
  Choice packed{PositionCodec::kPacked, packed_part(block)};
  Choice bitmap{PositionCodec::kBitmap, bitmap_part(block)};
  return bitmap.part.bytes.size() < packed.part.bytes.size() ? bitmap : packed;
}

void encode(const BlockContent& block, PositionMode mode, ValueCodec values, ReferenceBlock& out) {
  auto [codec, positions] = position_choice(block, mode);
  Part words = values == ValueCodec::kUlp ? ulp_part(block) : words_part(block.words, block.width());
  if (block.span() * block.element_bytes < positions.bytes.size() + words.bytes.size()) {
    codec = PositionCodec::kDense;
    positions = {};
    words = words_part(block.all_words, block.width());
  }
  out.coding = static_cast<std::uint32_t>(codec) | static_cast<std::uint32_t>(values) << 3 | positions.parameters |
               words.parameters;
  out.payload = positions.bytes;
  out.payload.insert(out.payload.end(), words.bytes.begin(), words.bytes.end());
}

struct TileRun {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};

/// §5.1; `changes` by tile of a whole tensor.
std::vector<TileRun> cut_into_runs(const Words& changes) {
  std::vector<TileRun> runs;
  std::uint64_t before = 0;           // C
  std::optional<std::uint64_t> open;  // C / 512 of the run that the next tile may join.
  for (std::uint64_t tile = 0; tile < changes.size(); ++tile) {
    if (tile % kTilesPerSection == 0) {
      before = 0;
      open.reset();
    }
    const std::uint64_t count = changes[tile];
    if (count >= kBlockChanges) {
      runs.push_back({tile, tile});
      open.reset();
    } else if (count > 0 && open == before / kBlockChanges) {
      runs.back().last = tile;
    } else if (count > 0) {
      runs.push_back({tile, tile});
      open = before / kBlockChanges;
    }
    before += count;
  }
  return runs;
}

}  // namespace

std::uint64_t reference_element(ConstBytes bits, DType dtype, std::uint64_t index) {
  const std::size_t size = element_size(dtype);
  std::uint64_t element = 0;
  for (std::size_t i = 0; i < size; ++i) {
    element |= static_cast<std::uint64_t>(bits[index * size + i]) << (8 * i);
  }
  return element;
}

std::vector<ReferenceBlock> reference_blocks(const TensorSpec& spec, ConstBytes old_bits, ConstBytes new_bits,
                                             PositionMode mode, ValueCodec values) {
  const std::uint64_t elements = spec.elements();
  const auto differs = [&](std::uint64_t i) {
    return reference_element(old_bits, spec.dtype, i) != reference_element(new_bits, spec.dtype, i);
  };
  Words changes((elements + kTileElems - 1) / kTileElems);
  for (std::uint64_t i = 0; i < elements; ++i) changes[i / kTileElems] += differs(i) ? 1 : 0;

  std::vector<ReferenceBlock> blocks;
  for (const TileRun& run : cut_into_runs(changes)) {
    const std::uint64_t begin = run.first * kTileElems;
    const std::uint64_t end = std::min((run.last + 1) * kTileElems, elements);
    BlockContent content;
    content.element_bytes = element_size(spec.dtype);
    for (std::uint64_t i = begin; i < end; ++i) {
      const bool changed = differs(i);
      const std::uint64_t word = coded_word(values, reference_element(new_bits, spec.dtype, i),
                                            reference_element(old_bits, spec.dtype, i), spec.dtype);
      content.all_words.push_back(word);
      if (!changed) continue;
      content.positions.push_back(i - begin);
      content.words.push_back(word);
    }
    ReferenceBlock block;
    block.first_tile = static_cast<std::uint32_t>(run.first);
    block.tiles = static_cast<std::uint32_t>(run.last - run.first + 1);
    block.changed = static_cast<std::uint32_t>(content.n());
    encode(content, mode, values, block);
    blocks.push_back(std::move(block));
  }
  return blocks;
}

}  // namespace sparsecast
