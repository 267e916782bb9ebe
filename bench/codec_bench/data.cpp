#include "codec_bench/data.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "codec/codec_common.hpp"
#include "common/random.hpp"
#include "core/word.hpp"

namespace sparsecast::bench {
namespace {

std::uint16_t to_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bf16_from_f32_bits(bits);
}

/// Adam-like steps of fp32 masters (sign and size vary), rounded to bf16 before and after. The step that gives the
/// density is found by bisection: the density is an outcome of rounding, not a coin.
Pair adamw_pair(std::uint64_t count, double density, std::uint64_t seed) {
  std::vector<float> master(count);
  std::vector<float> step(count);
  RandomStream random(seed);
  for (std::uint64_t i = 0; i < count; ++i) {
    const float a = random.noise();
    const float b = random.noise();
    master[i] = 0.02F * random.noise() / std::sqrt(0.5F * (a * a + b * b) + 0.05F);
    step[i] = 0.7F * random.noise();
  }
  const auto fraction = [&](float rate) {
    std::uint64_t changed = 0;
    const std::uint64_t sample = std::min<std::uint64_t>(count, 1 << 20);
    for (std::uint64_t i = 0; i < sample; ++i)
      changed += to_bf16(master[i]) != to_bf16(master[i] - rate * step[i]) ? 1 : 0;
    return static_cast<double>(changed) / static_cast<double>(sample);
  };
  float low = 1e-12F;
  float high = 1e-1F;
  for (int i = 0; i < 50; ++i) {
    const float middle = std::sqrt(low * high);
    (fraction(middle) < density ? low : high) = middle;
  }
  Pair pair;
  pair.before.resize(count * 2);
  pair.after.resize(count * 2);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint16_t before = to_bf16(master[i]);
    const std::uint16_t after = to_bf16(master[i] - high * step[i]);
    store_word(pair.before.data(), i, before);
    store_word(pair.after.data(), i, after);
    pair.changed += before != after ? 1 : 0;
  }
  return pair;
}

template <class T>
void change_words(Pair& pair, std::uint64_t count, double density, ChangeKind kind, RandomStream& random) {
  constexpr std::uint64_t kWidth = 8 * sizeof(T);
  constexpr std::uint64_t kRow = 256;
  bool row_hit = false;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (i % kRow == 0) row_hit = random.open_unit() < std::sqrt(density);
    const double chance = kind == ChangeKind::kRows ? (row_hit ? std::sqrt(density) : 0.0) : density;
    if (random.open_unit() >= chance) continue;
    T jump = static_cast<T>(1 + random.next() % 3);
    if (kind == ChangeKind::kWide) {
      // The highest bit set before the shift: every length from 1 bit to the element's width is as likely, and no jump
      // is 0.
      constexpr T kTop = static_cast<T>(T{1} << (kWidth - 1));
      jump = static_cast<T>(static_cast<T>(static_cast<T>(random.next()) | kTop) >> (random.next() % kWidth));
    }
    const T before = load_word<T>(pair.before.data(), i);
    store_word(pair.after.data(), i, static_cast<T>((random.next() & 1) != 0 ? before + jump : before - jump));
    ++pair.changed;
  }
}

}  // namespace

Pair make_pair_of(std::uint64_t count, DType dtype, double density, ChangeKind kind, std::uint64_t seed) {
  if (kind == ChangeKind::kAdamw) return adamw_pair(count, density, seed);
  const std::size_t size = element_size(dtype);
  RandomStream random(seed);
  Pair pair;
  pair.before.resize(count * size);
  for (std::size_t i = 0; i + 8 <= pair.before.size(); i += 8) store_word(pair.before.data() + i, 0, random.next());
  pair.after = pair.before;
  with_word(size, [&]<class T>() { change_words<T>(pair, count, density, kind, random); });
  return pair;
}

}  // namespace sparsecast::bench
