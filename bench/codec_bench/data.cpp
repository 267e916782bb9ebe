// SPDX-License-Identifier: Apache-2.0
#include "codec_bench/data.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "codec/codec_common.hpp"
#include "common/random.hpp"
#include "common/training.hpp"
#include "core/word.hpp"

namespace sparsecast::bench {
namespace {

std::uint16_t to_bf16(float value) { return bf16_from_f32_bits(std::bit_cast<std::uint32_t>(value)); }

/// Masters late in a simulated training run, and the step that AdamW makes there for a learning rate of 1.
struct AdamwRun {
  std::vector<float> master;
  std::vector<float> step;
};

/// Simulates `count` weights, piece by piece, so that the moments of one piece are in memory at a time.
AdamwRun simulate(std::uint64_t count, std::uint64_t seed) {
  constexpr std::uint64_t kColumns = 1024;
  constexpr std::uint64_t kPieceRows = 2048;
  AdamwRun run;
  run.master.reserve(count);
  run.step.reserve(count);
  for (std::uint64_t piece = 0; run.master.size() < count; ++piece) {
    const std::uint64_t left = count - run.master.size();
    const std::uint64_t rows = std::min(kPieceRows, (left + kColumns - 1) / kColumns);
    TrainingOptions options;
    options.seed = seed + piece;
    options.threads = 0;
    const Training training(TensorTable({{"weight", DType::kBF16, {rows, kColumns}}}), options);
    const std::span<const float> master = training.masters()[0].first(std::min(left, rows * kColumns));
    const std::vector<float> step = training.unit_step(0);
    run.master.insert(run.master.end(), master.begin(), master.end());
    run.step.insert(run.step.end(), step.begin(), step.begin() + static_cast<std::ptrdiff_t>(master.size()));
  }
  return run;
}

/// Returns the simulated run, and keeps it, because one array is needed at many densities.
const AdamwRun& adamw_run(std::uint64_t count, std::uint64_t seed) {
  static AdamwRun run;
  static std::uint64_t run_seed = 0;
  if (run.master.size() != count || run_seed != seed) {
    run = {};
    run = simulate(count, seed);
    run_seed = seed;
  }
  return run;
}

/// Casts the masters to bf16 before and after one AdamW step. Finds the learning rate that gives the density by
/// bisection, so that which weights change follows from rounding and not from a random choice.
Pair adamw_pair(std::uint64_t count, double density, std::uint64_t seed) {
  const AdamwRun& run = adamw_run(count, seed);
  const auto fraction = [&](float rate) {
    // The sample is spread over the whole array, because its rows differ.
    const std::uint64_t stride = std::max<std::uint64_t>(1, count >> 20) | 1;
    std::uint64_t changed = 0;
    std::uint64_t sample = 0;
    for (std::uint64_t i = 0; i < count; i += stride, ++sample) {
      changed += to_bf16(run.master[i]) != to_bf16(run.master[i] + rate * run.step[i]) ? 1 : 0;
    }
    return static_cast<double>(changed) / static_cast<double>(sample);
  };
  float low = 1e-12F;
  float high = 1.0F;
  for (int i = 0; i < 50; ++i) {
    const float middle = std::sqrt(low * high);
    (fraction(middle) < density ? low : high) = middle;
  }
  Pair pair;
  pair.before.resize(count * 2);
  pair.after.resize(count * 2);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint16_t before = to_bf16(run.master[i]);
    const std::uint16_t after = to_bf16(run.master[i] + high * run.step[i]);
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
      // With the highest bit set before the shift, every length from 1 bit to the element's width is as likely, and
      // no jump is 0.
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
