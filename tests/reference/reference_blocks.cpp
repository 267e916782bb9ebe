// SPDX-License-Identifier: Apache-2.0
#include "reference/reference_blocks.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <optional>
#include <tuple>
#include <utility>

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
  Words old_words;  ///< The old bits of every element.
  DType dtype = DType::kBF16;

  std::uint64_t element_bytes() const { return element_size(dtype); }
  std::uint64_t n() const { return positions.size(); }
  std::uint64_t span() const { return all_words.size(); }
  std::uint64_t width() const { return 8 * element_bytes(); }
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

/// The step of four bits, as a number from -8 to 7.
int step_of_half(std::uint64_t new_bits, std::uint64_t old_bits, bool floating) {
  const std::uint64_t step = ordered_form(new_bits & 15, 4, floating) - ordered_form(old_bits & 15, 4, floating);
  return static_cast<int>((step + 8) & 15) - 8;
}

std::uint64_t pair_word(int l, int h) {
  if (l == -8) return std::uint64_t{128} + static_cast<std::uint64_t>(h);
  if (h == -8) return static_cast<std::uint64_t>(l < 0 ? 120 + l : 136 + l);
  const int k = std::max(std::abs(l), std::abs(h));
  if (k == 0) return 0;
  const auto [p, q, t] = std::abs(l) == k ? std::tuple(l, h, 0) : std::tuple(h, l, 1);
  const int along = p < 0 ? -q : q;
  const int z = along > 0 ? 2 * along - 1 : -2 * along;
  const int m = 2 * k * (k - 1) + std::min(2 * z + t, 4 * k - 1);
  return static_cast<std::uint64_t>(p > 0 ? m + 1 : 255 - m);
}

std::uint64_t coded_word(ValueCodec values, std::uint64_t new_bits, std::uint64_t old_bits, DType dtype) {
  const std::uint64_t width = 8 * element_size(dtype);
  const std::uint64_t sign = std::uint64_t{1} << (width - 1);
  if (values == ValueCodec::kRaw) return new_bits;
  if (values == ValueCodec::kXor) return new_bits ^ old_bits;
  if (dtype == DType::kI4X2 || dtype == DType::kF4X2) {
    const bool fp4 = dtype == DType::kF4X2;
    return pair_word(step_of_half(new_bits, old_bits, fp4), step_of_half(new_bits >> 4, old_bits >> 4, fp4));
  }
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

/// §4.1, packed: the codes of the quotients and their tails.
BitString quotient_bits(const Words& quotients) {
  BitString bits;
  BitString tails;
  for (const std::uint64_t q : quotients) {
    const std::uint64_t t = q < 8 ? 0 : width_of(q - 7) - 1;
    bits.put_unary(q < 8 ? q : 8 + t);
    tails.put_field(q - 7, t);
  }
  bits.append(tails);
  return bits;
}

/// §4.1, packed
BitString packed_bits(const Words& gaps, std::uint64_t kp) {
  BitString bits;
  Words quotients;
  for (const std::uint64_t gap : gaps) {
    bits.put_field(gap, kp);
    quotients.push_back(gap >> kp);
  }
  bits.append(quotient_bits(quotients));
  return bits;
}

/// §5.2
std::uint64_t choose_kp(const Words& gaps) {
  std::uint64_t sum = 0;  // As it is last position + 1 - n.
  for (const std::uint64_t gap : gaps) sum += gap;
  std::uint64_t kp = rice_rule(sum, gaps.size());
  while (kp > 0 && packed_bits(gaps, kp - 1).size() < packed_bits(gaps, kp).size()) --kp;
  return kp;
}

Part packed_part(const BlockContent& block) {
  const Words gaps = block.gaps();
  const std::uint64_t kp = choose_kp(gaps);
  return {packed_bits(gaps, kp).bytes(), static_cast<std::uint32_t>(kp) << 5};
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

/// §4.2: the sign of a coded word.
std::uint64_t sign_of(std::uint64_t c, std::uint64_t width) { return c >> (width - 1); }

/// §4.2: m of a coded word.
std::uint64_t magnitude_of(std::uint64_t c, std::uint64_t width) {
  const std::uint64_t modulus_minus_one = width == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << width) - 1;
  return sign_of(c, width) == 0 ? c - 1 : modulus_minus_one - c;
}

/// §4.2, point 3, of the exceptions with their indices and their h. Returns ke.
std::uint64_t put_exceptions(BitString& bits, const Words& exceptions, const Words& h) {
  const std::uint64_t count = exceptions.size();
  const std::uint64_t ke = count == 0 ? 0 : rice_rule(exceptions.back() + 1 - count, count);
  Words g;
  for (std::size_t j = 0; j < count; ++j) {
    g.push_back(j == 0 ? exceptions[0] : exceptions[j] - exceptions[j - 1] - 1);
  }
  bits.put_exp_golomb(count);
  for (const std::uint64_t gap : g) bits.put_field(gap, ke);
  for (const std::uint64_t gap : g) bits.put_unary(gap >> ke);
  for (const std::uint64_t high : h) bits.put_unary(width_of(high) - 1);
  for (const std::uint64_t high : h) bits.put_field(high, width_of(high) - 1);
  return ke;
}

/// §5.7
std::uint64_t quick_kv(const Words& magnitudes) {
  std::uint64_t kv = 0;
  const auto exceptions = [&] {
    return std::count_if(magnitudes.begin(), magnitudes.end(), [&](std::uint64_t m) { return (m >> kv) != 0; });
  };
  while (16 * static_cast<std::uint64_t>(exceptions()) > magnitudes.size()) ++kv;
  return kv;
}

/// §4.2, ulp under a position codec other than dense.
Part ulp_part(const BlockContent& block, bool quick) {
  const std::uint64_t width = block.width();
  Words signs;
  Words magnitudes;
  for (const std::uint64_t c : block.words) {
    signs.push_back(sign_of(c, width));
    magnitudes.push_back(magnitude_of(c, width));
  }
  BitString bits;
  for (const std::uint64_t sign : signs) bits.put_field(sign, 1);
  const std::optional<std::uint64_t> chosen = quick ? quick_kv(magnitudes) : choose_kv(magnitudes, width);
  if (!chosen) {
    for (const std::uint64_t m : magnitudes) bits.put_field(width_of(m), width_of(width) - 1);
    for (const std::uint64_t m : magnitudes) bits.put_field(m, m == 0 ? 0 : width_of(m) - 1);
    return {bits.bytes(), 1U << 21};
  }
  const std::uint64_t kv = *chosen;
  Words exceptions;
  Words h;
  for (std::size_t i = 0; i < magnitudes.size(); ++i) {
    if ((magnitudes[i] >> kv) == 0) continue;
    exceptions.push_back(i);
    h.push_back(magnitudes[i] >> kv);
  }
  for (const std::uint64_t m : magnitudes) bits.put_field(m, kv);
  const std::uint64_t ke = put_exceptions(bits, exceptions, h);
  return {bits.bytes(), static_cast<std::uint32_t>(kv << 10 | ke << 16)};
}

/// §4.3: the key of an element with these old bits.
std::uint64_t context_key(std::uint64_t old_bits, DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return old_bits >> 7 & 0xFF;
    case DType::kF16:
      return old_bits >> 10 & 0x1F;
    case DType::kF32:
      return old_bits >> 23 & 0xFF;
    case DType::kF64: {
      const std::uint64_t f = old_bits >> 52 & 0x7FF;
      return f < 832 ? 0 : std::min<std::uint64_t>(f - 832, 255);
    }
    case DType::kF8E4M3:
      return old_bits >> 3 & 0xF;
    default:
      return old_bits >> 2 & 0x1F;
  }
}

/// §4.3: the classes of a block.
struct ContextClasses {
  std::uint64_t hi = 0;
  std::uint64_t classes = 1;
  std::uint64_t width = 1;

  std::uint64_t of(std::uint64_t key) const {
    return key >= hi ? 0 : std::min(classes - 1, (hi - key + width - 1) / width);
  }
};

/// §5.6, the first point; `keys` of the changes.
ContextClasses choose_classes(const Words& keys) {
  const std::uint64_t n = keys.size();
  const auto counted = [&](auto holds) { return static_cast<std::uint64_t>(std::ranges::count_if(keys, holds)); };
  std::uint64_t largest = 255;
  while (16 * counted([&](std::uint64_t e) { return e >= largest; }) < n) --largest;
  std::uint64_t lo = 0;
  while (16 * counted([&](std::uint64_t e) { return e <= lo; }) < n) ++lo;
  ContextClasses chosen;
  chosen.hi = std::min<std::uint64_t>(255, 1 + largest);
  const std::uint64_t r = chosen.hi > lo ? chosen.hi - lo : 0;
  chosen.width = r < 8 ? 1 : 2;
  chosen.classes = std::min<std::uint64_t>(16, (r + chosen.width - 1) / chosen.width + 1);
  return chosen;
}

/// §4.3: the check of a block.
std::uint64_t context_check(const BlockContent& block) {
  std::vector<std::uint64_t> bytes;
  for (const std::uint64_t word : block.old_words) {
    for (std::uint64_t i = 0; i < block.element_bytes(); ++i) bytes.push_back(word >> (8 * i) & 0xFF);
  }
  std::uint64_t a = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) a += bytes[i] << (8 * (i % 4));
  std::uint64_t b = 0;
  for (const std::uint64_t p : block.positions) b += p;
  return (a + 0x9E3779B1U * b) & 0xFFFFFFFFU;
}

/// The changes of a context block: class by class, in a class in order of position.
struct ContextChanges {
  std::array<Words, 16> gaps;  ///< Of the ranks, by class.
  Words keys;                  ///< Of all changes in their order.
  Words words;                 ///< Coded.
};

ContextChanges context_changes(const BlockContent& block, const ContextClasses& classes) {
  ContextChanges out;
  for (std::uint64_t c = 0; c < classes.classes; ++c) {
    std::uint64_t unchanged = 0;  // Elements of the class since its last change: the gap of the next one.
    std::size_t next = 0;
    for (std::uint64_t i = 0; i < block.span(); ++i) {
      const bool changed = next < block.n() && block.positions[next] == i;
      const std::uint64_t key = context_key(block.old_words[i], block.dtype);
      if (classes.of(key) == c && !changed) ++unchanged;
      if (classes.of(key) == c && changed) {
        out.gaps[c].push_back(unchanged);
        out.keys.push_back(key);
        out.words.push_back(block.words[next]);
        unchanged = 0;
      }
      if (changed) ++next;
    }
  }
  return out;
}

/// §4.3, the position part.
Part context_position_part(const BlockContent& block, const ContextClasses& classes, const ContextChanges& changes) {
  BitString bits;
  bits.put_field(classes.hi, 8);
  bits.put_field(classes.classes - 1, 4);
  bits.put_field(classes.width - 1, 1);
  bits.put_field(context_check(block), 32);
  for (std::uint64_t c = 0; c + 1 < classes.classes; ++c) bits.put_field(changes.gaps[c].size(), width_of(block.n()));
  Words quotients;
  BitString remainders;
  for (const Words& gaps : changes.gaps) {
    if (gaps.empty()) continue;
    const std::uint64_t k = choose_kp(gaps);
    bits.put_field(k, 5);
    for (const std::uint64_t gap : gaps) {
      remainders.put_field(gap, k);
      quotients.push_back(gap >> k);
    }
  }
  bits.append(remainders);
  bits.append(quotient_bits(quotients));
  return {bits.bytes(), 0};
}

/// §5.6: rice.
std::uint64_t choose_rice(const Words& keys, const Words& magnitudes) {
  std::uint64_t rice = 0;
  for (std::uint64_t e = 0; e < 256; ++e) {
    std::uint64_t count = 0;
    std::uint64_t not_zero = 0;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (keys[i] != e) continue;
      ++count;
      if (magnitudes[i] != 0) ++not_zero;
    }
    if (count == 0) continue;
    if (8 * not_zero < count) break;
    rice = e + 1;
  }
  return rice;
}

/// §4.3: v of a change.
std::uint64_t low_bits(std::uint64_t key, std::uint64_t scale, std::uint64_t width) {
  return scale < key ? 0 : std::min(width - 1, scale - key);
}

/// §5.6: scale.
std::uint64_t choose_scale(const Words& keys, const Words& magnitudes, std::uint64_t rice, std::uint64_t width) {
  if (rice == 0) return 0;
  std::uint64_t best = 0;
  std::uint64_t best_cost = ~std::uint64_t{0};
  for (std::uint64_t scale = rice < 8 ? 0 : rice - 8; scale <= rice + width - 1; ++scale) {
    std::uint64_t cost = 0;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (keys[i] >= rice) continue;
      constexpr std::array<std::uint64_t, 5> kCosts = {2, 4, 7, 13, 25};
      const std::uint64_t v = low_bits(keys[i], scale, width);
      const std::uint64_t b = width_of(magnitudes[i] >> v);
      cost += 2 * v + (b < kCosts.size() ? kCosts[b] : 4 * b + 13);
    }
    if (cost < best_cost) {
      best = scale;
      best_cost = cost;
    }
  }
  return best;
}

/// §4.3, the value part.
Part context_value_part(const ContextChanges& changes, std::uint64_t width) {
  const std::size_t n = changes.words.size();
  Words magnitudes;
  for (const std::uint64_t c : changes.words) magnitudes.push_back(magnitude_of(c, width));
  const std::uint64_t rice = choose_rice(changes.keys, magnitudes);
  const std::uint64_t scale = choose_scale(changes.keys, magnitudes, rice, width);
  BitString bits;
  bits.put_field(rice, 9);
  bits.put_field(scale, 9);
  for (const std::uint64_t c : changes.words) bits.put_field(sign_of(c, width), 1);
  Words exceptions;
  Words h;
  Words quotients;
  for (std::size_t i = 0; i < n; ++i) {
    if (changes.keys[i] < rice) {
      const std::uint64_t v = low_bits(changes.keys[i], scale, width);
      bits.put_field(magnitudes[i], v);
      quotients.push_back(magnitudes[i] >> v);
    } else if (magnitudes[i] != 0) {
      exceptions.push_back(i);
      h.push_back(magnitudes[i]);
    }
  }
  const std::uint64_t ke = put_exceptions(bits, exceptions, h);
  bits.append(quotient_bits(quotients));
  return {bits.bytes(), static_cast<std::uint32_t>(ke << 16)};
}

/// §5.6: both parts of a context block.
std::pair<Part, Part> context_parts(const BlockContent& block) {
  Words keys;
  for (const std::uint64_t p : block.positions) keys.push_back(context_key(block.old_words[p], block.dtype));
  const ContextClasses classes = choose_classes(keys);
  const ContextChanges changes = context_changes(block, classes);
  return {context_position_part(block, classes, changes), context_value_part(changes, block.width())};
}

std::size_t bytes_of(const Part& positions, const Part& words) { return positions.bytes.size() + words.bytes.size(); }

struct Choice {
  PositionCodec codec;
  Part part;
};

/// §5.4, before context and dense are weighed.
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
    case PositionMode::kContext:
      break;
  }
  Choice packed{PositionCodec::kPacked, packed_part(block)};
  Choice bitmap{PositionCodec::kBitmap, bitmap_part(block)};
  return bitmap.part.bytes.size() < packed.part.bytes.size() ? bitmap : packed;
}

void put(const BlockContent& block, PositionCodec codec, const Part& positions, const Part& words, ValueCodec values,
         ReferenceBlock& out) {
  out.changed = static_cast<std::uint32_t>(block.n());
  out.coding = static_cast<std::uint32_t>(codec) | static_cast<std::uint32_t>(values) << 3 | positions.parameters |
               words.parameters;
  out.payload = positions.bytes;
  out.payload.insert(out.payload.end(), words.bytes.begin(), words.bytes.end());
}

void encode(const BlockContent& block, PositionMode mode, ValueCodec values, bool quick, ReferenceBlock& out) {
  quick = quick && mode == PositionMode::kAuto && 4 * block.n() >= block.span();
  auto [codec, positions] = position_choice(block, quick ? PositionMode::kBitmap : mode);
  Part words = values == ValueCodec::kUlp ? ulp_part(block, quick) : words_part(block.words, block.width());
  if (block.span() * block.element_bytes() < bytes_of(positions, words)) {
    codec = PositionCodec::kDense;
    positions = {};
    words = words_part(block.all_words, block.width());
  }
  put(block, codec, positions, words, values, out);
}

struct TileRun {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};

/// §5.1; `changes` by tile of a whole tensor, `limit`: L.
std::vector<TileRun> cut_into_runs(const Words& changes, std::uint64_t limit) {
  std::vector<TileRun> runs;
  std::uint64_t before = 0;           // C
  std::optional<std::uint64_t> open;  // C / L of the run that the next tile may join.
  for (std::uint64_t tile = 0; tile < changes.size(); ++tile) {
    if (tile % kTilesPerSection == 0) {
      before = 0;
      open.reset();
    }
    const std::uint64_t count = changes[tile];
    if (count >= limit) {
      runs.push_back({tile, tile});
      open.reset();
    } else if (count > 0 && open == before / limit) {
      runs.back().last = tile;
    } else if (count > 0) {
      runs.push_back({tile, tile});
      open = before / limit;
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
                                             PositionMode mode, ValueCodec values, std::uint32_t block_changes,
                                             bool quick) {
  const std::uint64_t elements = spec.elements();
  const auto differs = [&](std::uint64_t i) {
    return reference_element(old_bits, spec.dtype, i) != reference_element(new_bits, spec.dtype, i);
  };
  Words changes((elements + kTileElems - 1) / kTileElems);
  for (std::uint64_t i = 0; i < elements; ++i) changes[i / kTileElems] += differs(i) ? 1 : 0;

  const auto content_of = [&](const TileRun& run) {
    const std::uint64_t begin = run.first * kTileElems;
    const std::uint64_t end = std::min((run.last + 1) * kTileElems, elements);
    BlockContent content;
    content.dtype = spec.dtype;
    for (std::uint64_t i = begin; i < end; ++i) {
      const std::uint64_t word = coded_word(values, reference_element(new_bits, spec.dtype, i),
                                            reference_element(old_bits, spec.dtype, i), spec.dtype);
      content.all_words.push_back(word);
      content.old_words.push_back(reference_element(old_bits, spec.dtype, i));
      if (!differs(i)) continue;
      content.positions.push_back(i - begin);
      content.words.push_back(word);
    }
    return content;
  };
  const auto block_at = [](const TileRun& run) {
    ReferenceBlock block;
    block.first_tile = static_cast<std::uint32_t>(run.first);
    block.tiles = static_cast<std::uint32_t>(run.last - run.first + 1);
    return block;
  };

  std::vector<ReferenceBlock> blocks;
  const bool context = mode == PositionMode::kContext;
  for (const TileRun& run : cut_into_runs(changes, block_changes)) {
    blocks.push_back(block_at(run));
    encode(content_of(run), context ? PositionMode::kAuto : mode, values, quick, blocks.back());
  }
  if (!context || !is_floating(spec.dtype)) return blocks;

  // §5.4: a `context` block in the place of those of its tiles.
  std::vector<ReferenceBlock> chosen;
  std::size_t next = 0;
  for (const TileRun& run : cut_into_runs(changes, 4096)) {
    std::size_t end = next;
    std::size_t bytes = 0;
    while (end < blocks.size() && blocks[end].first_tile <= run.last) bytes += 16 + blocks[end++].payload.size();
    const BlockContent content = content_of(run);
    const auto [positions, words] = context_parts(content);
    if (16 + bytes_of(positions, words) < bytes) {
      chosen.push_back(block_at(run));
      put(content, PositionCodec::kContext, positions, words, values, chosen.back());
    } else {
      chosen.insert(chosen.end(), blocks.begin() + static_cast<std::ptrdiff_t>(next),
                    blocks.begin() + static_cast<std::ptrdiff_t>(end));
    }
    next = end;
  }
  return chosen;
}

}  // namespace sparsecast
