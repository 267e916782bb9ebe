// SPDX-License-Identifier: Apache-2.0
#pragma once

// fp32 masters of bf16 tensors, and what receivers of their casts hold, worked out without the library's arithmetic.

#include <bit>
#include <cmath>
#include <memory>
#include <vector>

#include "support/random_delta.hpp"

namespace sparsecast::test {

inline double bf16_value(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

/// Rounds to the nearer of two neighbours in exact arithmetic, and to the even one of two equally near. Doubles hold
/// both differences exactly. The neighbour above the greatest finite bf16 is 2^128, which stands for infinity.
inline std::uint16_t slow_bf16(std::uint32_t bits) {
  const auto upper = static_cast<std::uint16_t>(bits >> 16);
  const float value = std::bit_cast<float>(bits);
  if (std::isnan(value)) return static_cast<std::uint16_t>(upper | 0x40);
  if (std::isinf(value)) return upper;
  const auto magnitude = [](std::uint16_t pattern) {
    pattern &= 0x7FFF;
    return pattern == 0x7F80 ? 0x1p128 : bf16_value(pattern);
  };
  const auto away = static_cast<std::uint16_t>(upper + 1);
  const double exact = std::fabs(static_cast<double>(value));
  const double to_lower = exact - magnitude(upper);
  const double to_away = magnitude(away) - exact;
  if (to_lower < to_away) return upper;
  if (to_lower > to_away) return away;
  return (upper & 1) == 0 ? upper : away;
}

/// Returns the table as the trainer holds it: each bf16 tensor is a master in F32 with this probability.
inline TensorTable with_masters(Random& random, const TensorTable& table, double probability) {
  std::vector<TensorSpec> specs(table.begin(), table.end());
  for (TensorSpec& spec : specs) {
    if (spec.dtype == DType::kBF16 && random.chance(probability)) spec.dtype = DType::kF32;
  }
  return TensorTable(std::move(specs));
}

/// Returns the state that receivers of `table` hold for a state of with_masters().
inline TensorState cast_slowly(const TensorTable& table, const TensorTable& held, const TensorState& state) {
  TensorState out = state;
  for (std::size_t t = 0; t < table.size(); ++t) {
    if (held[t].dtype == table[t].dtype) continue;
    out[t].resize(table[t].bytes());
    for (std::uint64_t i = 0; i < table[t].elements(); ++i) {
      const auto bits = static_cast<std::uint32_t>(read_element(state[t].data(), 4, i));
      write_element(out[t].data(), 2, i, slow_bf16(bits));
    }
  }
  return out;
}

/// One step of training: masters move by fractions of a bf16 ULP, a few of them and all else by anything.
inline void train_masters(Random& random, const TensorTable& table, const TensorTable& held, TensorState& state) {
  const TensorState before = state;
  change_randomly(random, held, state);
  const double jumps = random.chance(0.3) ? 1.0 : 0.05;
  for (std::size_t t = 0; t < table.size(); ++t) {
    if (held[t].dtype == table[t].dtype) continue;
    for (std::uint64_t i = 0; i < table[t].elements(); ++i) {
      const std::uint64_t old = read_element(before[t].data(), 4, i);
      if (read_element(state[t].data(), 4, i) != old && random.chance(jumps)) continue;
      write_element(state[t].data(), 4, i, old + random.below(0x400) - 0x200);
    }
  }
}

}  // namespace sparsecast::test
