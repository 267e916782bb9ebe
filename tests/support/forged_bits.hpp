// SPDX-License-Identifier: Apache-2.0
#pragma once

// Payloads built bit by bit, for blocks that no encoder of ours would write.

#include <bit>

#include "reference/reference_blocks.hpp"

namespace sparsecast::test {

class ForgedBits {
 public:
  ForgedBits& field(std::uint64_t value, std::uint32_t width) {
    for (std::uint32_t i = 0; i < width; ++i) bits_.push_back((value >> i & 1) != 0);
    return *this;
  }
  ForgedBits& zeros(std::size_t count) {
    bits_.insert(bits_.end(), count, false);
    return *this;
  }
  ForgedBits& unary(std::uint64_t quotient) {
    zeros(quotient);
    return field(1, 1);
  }
  ForgedBits& exp_golomb(std::uint64_t v) {
    const auto low = static_cast<std::uint32_t>(std::bit_width(v + 1)) - 1;
    return unary(low).field(v + 1, low);
  }
  ForgedBits& append(const ForgedBits& more) {
    bits_.insert(bits_.end(), more.bits_.begin(), more.bits_.end());
    return *this;
  }
  /// To the end of a 4-byte unit, with zeros or with ones.
  ForgedBits& pad(bool ones = false) {
    while (bits_.size() % 32 != 0) bits_.push_back(ones);
    return *this;
  }
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

/// Parameters of a block, as its coding word packs them.
struct Parameters {
  std::uint32_t kp = 0;
  std::uint32_t kv = 0;
  std::uint32_t ke = 0;
  bool lengths = false;
};

inline std::uint32_t coding_word(std::uint32_t position_codec, ValueCodec values, const Parameters& parameters = {}) {
  return position_codec | static_cast<std::uint32_t>(values) << 3 | parameters.kp << 5 | parameters.kv << 10 |
         parameters.ke << 16 | (parameters.lengths ? 1U << 21 : 0U);
}
inline std::uint32_t coding_word(PositionCodec positions, ValueCodec values, const Parameters& parameters = {}) {
  return coding_word(static_cast<std::uint32_t>(positions), values, parameters);
}

/// A quotient of packed positions and, in `tails`, what is left of it.
inline void put_quotient(ForgedBits& bits, ForgedBits& tails, std::uint64_t quotient) {
  const auto tail = quotient < 8 ? 0 : static_cast<std::uint32_t>(std::bit_width(quotient - 7)) - 1;
  bits.unary(quotient < 8 ? quotient : 8 + tail);
  tails.field(quotient - 7, tail);
}

/// Packed positions with any parameter.
inline ForgedBits packed_positions(const std::vector<std::uint64_t>& positions, std::uint32_t kp) {
  ForgedBits bits;
  std::vector<std::uint64_t> gaps;
  for (std::size_t i = 0; i < positions.size(); ++i)
    gaps.push_back(i == 0 ? positions[0] : positions[i] - positions[i - 1] - 1);
  for (const std::uint64_t gap : gaps) bits.field(gap, kp);
  ForgedBits tails;
  for (const std::uint64_t gap : gaps) put_quotient(bits, tails, gap >> kp);
  return bits.append(tails).pad();
}

/// Signs and magnitudes (distance in ULP minus one) with any parameters, of a 16-bit dtype; `down` is the sign.
struct UlpStep {
  bool down = false;
  std::uint64_t magnitude = 0;
};

inline ForgedBits ulp_values(const std::vector<UlpStep>& steps, const Parameters& parameters) {
  ForgedBits bits;
  std::vector<std::uint64_t> exceptions;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    bits.field(steps[i].down ? 1 : 0, 1);
    if (steps[i].magnitude >> parameters.kv != 0) exceptions.push_back(i);
  }
  const auto low_bits = [](std::uint64_t high) { return static_cast<std::uint32_t>(std::bit_width(high)) - 1; };
  if (parameters.lengths) {
    for (const UlpStep& step : steps) bits.field(static_cast<std::uint64_t>(std::bit_width(step.magnitude)), 4);
    for (const UlpStep& step : steps) bits.field(step.magnitude, step.magnitude == 0 ? 0 : low_bits(step.magnitude));
    return bits;
  }
  for (const UlpStep& step : steps) bits.field(step.magnitude, parameters.kv);
  bits.exp_golomb(exceptions.size());
  std::vector<std::uint64_t> gaps;
  std::vector<std::uint64_t> highs;
  for (const std::uint64_t at : exceptions) {
    gaps.push_back(gaps.empty() ? at : at - exceptions[gaps.size() - 1] - 1);
    highs.push_back(steps[at].magnitude >> parameters.kv);
  }
  for (const std::uint64_t gap : gaps) bits.field(gap, parameters.ke);
  for (const std::uint64_t gap : gaps) bits.unary(gap >> parameters.ke);
  for (const std::uint64_t high : highs) bits.unary(low_bits(high));
  for (const std::uint64_t high : highs) bits.field(high, low_bits(high));
  return bits;
}

/// One block in the first tile of its tensor: packed and ulp, with any parameters.
inline ReferenceBlock packed_ulp_block(const std::vector<std::uint64_t>& positions, const std::vector<UlpStep>& steps,
                                       const Parameters& parameters) {
  ReferenceBlock block;
  block.changed = static_cast<std::uint32_t>(positions.size());
  block.coding = coding_word(PositionCodec::kPacked, ValueCodec::kUlp, parameters);
  block.payload = packed_positions(positions, parameters.kp).bytes();
  const Bytes values = ulp_values(steps, parameters).bytes();
  block.payload.insert(block.payload.end(), values.begin(), values.end());
  return block;
}

}  // namespace sparsecast::test
