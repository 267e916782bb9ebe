// SPDX-License-Identifier: Apache-2.0
#pragma once

// Random numbers for tests: the same sequence on every platform, which the standard distributions do not promise.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <span>
#include <string>

namespace sparsecast::test {

/// SplitMix64.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }
  /// 0 to bound - 1; `bound` is at least 1. The bias of the remainder does not matter here.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  std::uint64_t between(std::uint64_t least, std::uint64_t most) { return least + below(most - least + 1); }
  /// [0, 1)
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  bool chance(double probability) { return unit() < probability; }
  /// least to most, uniform in the logarithm; both positive.
  double log_uniform(double least, double most) { return least * std::pow(most / least, unit()); }
  template <class T>
  const T& pick(std::span<const T> choices) {
    return choices[below(choices.size())];
  }

 private:
  std::uint64_t state_;
};

/// The seed of this run's random tests: SPARSECAST_SEED, or a new one.
inline std::uint64_t run_seed() {
  static const std::uint64_t seed = [] {
    if (const char* text = std::getenv("SPARSECAST_SEED")) return std::uint64_t{std::strtoull(text, nullptr, 0)};
    return std::uint64_t{std::random_device{}()};
  }();
  return seed;
}

/// Returns the text for SCOPED_TRACE that tells how to repeat this run.
inline std::string seed_note() { return "SPARSECAST_SEED=" + std::to_string(run_seed()); }

/// Seed of the `index`-th independent case of a run.
inline std::uint64_t case_seed(std::uint64_t run, std::uint64_t index) {
  return Random(run ^ (index * 0xD1342543DE82EF95U)).next();
}

}  // namespace sparsecast::test
