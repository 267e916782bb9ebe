// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

namespace sparsecast::bench {

/// SplitMix64, seeded by any number of coordinates. Its numbers depend on them alone, so that work can be spread over
/// threads in any way.
class RandomStream {
 public:
  template <class... Coordinates>
  explicit RandomStream(std::uint64_t seed, Coordinates... coordinates) : state_(seed) {
    ((state_ = next() ^ (static_cast<std::uint64_t>(coordinates) * 0xD1342543DE82EF95U)), ...);
  }

  std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }
  /// Returns a number between 0 and 1, both excluded.
  double open_unit() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }
  /// Returns a nearly normal number of variance 1: the sum of four uniform ones, which is fast, because gradient noise
  /// is drawn for every weight.
  float noise() {
    const std::uint64_t bits = next();
    const auto sum = static_cast<float>((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) + (bits >> 32 & 0xFFFF) + (bits >> 48));
    return (sum - 131070.0F) * (1.7320508F / 65536.0F);
  }
  double normal() {
    const double radius = std::sqrt(-2 * std::log(open_unit()));
    return radius * std::cos(6.283185307179586 * open_unit());
  }
  /// Returns a number of Student's t with 4 degrees of freedom, scaled to variance 1: trained weights have such tails.
  double heavy_tailed() {
    // The inverse of the distribution function has a closed form for 4 degrees of freedom.
    const double u = open_unit();
    const double a = 4 * u * (1 - u);
    const double root = std::sqrt(a);
    const double q = std::cos(std::acos(root) / 3) / root;
    const double t = 2 * std::sqrt(std::fmax(0, q - 1));
    return (u < 0.5 ? -t : t) * 0.7071067811865476;
  }

 private:
  std::uint64_t state_;
};

}  // namespace sparsecast::bench
