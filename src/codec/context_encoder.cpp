// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "codec/block_coding.hpp"
#include "codec/context_kernels.hpp"
#include "codec/rice_writer.hpp"

namespace sparsecast {
namespace {

/// The parts of the code that have been laid out so far, and the data that later parts need from them.
template <class T>
class ContextEncoder {
 public:
  ContextEncoder(const BlockChanges<T>& block, ContextScratch& scratch) : block_(block), scratch_(scratch) {
    count_keys();
    classes_ = choose_classes(scratch_.counts, block.count);
    sort_by_class();
  }

  Coding encode(Bytes& out) {
    write_positions(out);
    return write_values(out);
  }

 private:
  void count_keys() {
    scratch_.grow_to_encode(block_.count);
    std::fill_n(scratch_.counts, kContextKeys, 0);
    std::fill_n(scratch_.far, kContextKeys, 0);
    for (std::uint32_t i = 0; i < block_.count; ++i) {
      const std::uint8_t key = block_.old_keys[block_.positions[i]];
      ++scratch_.counts[key];
      scratch_.far[key] += ulp_magnitude(block_.coded[i]) != 0 ? 1 : 0;
    }
  }

  /// Lists ranks, keys and magnitudes class by class.
  void sort_by_class() {
    const std::uint32_t n = block_.count;
    std::uint32_t* found = scratch_.found_ranks.data();
    std::uint8_t* class_of_change = scratch_.class_of_change.data();
    cpu::rank_changes(block_.old_keys, block_.span, classes_, block_.positions, n, class_of_change, found);
    begin_.fill(0);
    for (std::uint32_t i = 0; i < n; ++i) ++begin_[class_of_change[i] + 1];
    for (std::uint32_t c = 0; c < kMostClasses; ++c) begin_[c + 1] += begin_[c];
    auto next = begin_;
    for (std::uint32_t i = 0; i < n; ++i) {
      const std::uint32_t at = next[class_of_change[i]]++;
      scratch_.ranks[at] = found[i];
      scratch_.keys[at] = block_.old_keys[block_.positions[i]];
      scratch_.magnitudes[at] = ulp_magnitude(block_.coded[i]);
      scratch_.down[at] = static_cast<std::uint8_t>(block_.coded[i] >> (8 * sizeof(T) - 1));
    }
  }

  std::uint32_t size_of(std::uint32_t c) const { return begin_[c + 1] - begin_[c]; }

  std::uint32_t check() const {
    std::uint32_t sum = 0;
    for (std::uint32_t i = 0; i < block_.count; ++i) sum += block_.positions[i];
    return block_.old_sum + kPositionCheckFactor * sum;
  }

  void write_positions(Bytes& out) {
    std::uint32_t* gaps = scratch_.gaps.data();
    std::uint32_t kp[kMostClasses] = {};
    std::uint64_t bits = 46;
    const auto count_bits = static_cast<std::uint32_t>(bit_width64(block_.count));
    for (std::uint32_t c = 0; c < classes_.count; ++c) {
      if (size_of(c) == 0) continue;
      cpu::list_gaps(scratch_.ranks.data() + begin_[c], size_of(c), gaps + begin_[c]);
      bits += 5 + choose_kp(scratch_.ranks.data() + begin_[c], gaps + begin_[c], size_of(c), kp[c]);
    }
    bits += std::uint64_t{classes_.count - 1} * count_bits;
    const std::size_t begin = out.size();
    out.resize(begin + padded_bytes(bits) + 8);
    BitWriter writer(out.data() + begin, 0);
    writer.put(classes_.hi, 8);
    writer.put(classes_.count - 1, 4);
    writer.put(classes_.width - 1, 1);
    writer.put(check(), 32);
    for (std::uint32_t c = 0; c + 1 < classes_.count; ++c) writer.put(size_of(c), count_bits);
    for (std::uint32_t c = 0; c < classes_.count; ++c) {
      if (size_of(c) != 0) writer.put(kp[c], 5);
    }
    for (std::uint32_t c = 0; c < classes_.count; ++c) {
      cpu::put_fields(gaps + begin_[c], size_of(c), kp[c], writer);
    }
    scratch_.escaped.clear();
    for (std::uint32_t c = 0; c < classes_.count; ++c) {
      cpu::put_quotients(gaps + begin_[c], size_of(c), kp[c], writer, scratch_.escaped);
    }
    put_escaped_tails(scratch_.escaped, writer);
    out.resize(begin + padded_bytes(writer.position()));
  }

  /// Chooses the parameters of the values (docs/wire-format.md §5.6).
  ContextValues choose_values() {
    ContextValues values;
    values.rice_keys = choose_rice_keys(scratch_.counts, scratch_.far);
    if (values.rice_keys == 0) return values;
    constexpr std::uint32_t kWidths = 8 * sizeof(T) + 1;
    auto& widths = scratch_.widths;
    widths.assign(std::size_t{values.rice_keys} * kWidths, 0);
    for (std::uint32_t i = 0; i < block_.count; ++i) {
      if (scratch_.keys[i] >= values.rice_keys) continue;
      ++widths[std::size_t{scratch_.keys[i]} * kWidths +
               static_cast<std::uint32_t>(bit_width64(scratch_.magnitudes[i]))];
    }
    // Few keys and widths occur.
    scratch_.seen.clear();
    for (std::uint32_t key = 0; key < values.rice_keys; ++key) {
      if (scratch_.counts[key] == 0) continue;
      for (std::uint32_t width = 0; width < kWidths; ++width) {
        const std::uint32_t n = widths[std::size_t{key} * kWidths + width];
        if (n != 0) scratch_.seen.push_back({key, width, n});
      }
    }
    const std::uint32_t first = values.rice_keys > 8 ? values.rice_keys - 8 : 0;
    std::uint64_t best = ~std::uint64_t{0};
    for (std::uint32_t scale = first; scale < values.rice_keys + 8 * sizeof(T); ++scale) {
      const ContextValues tried{values.rice_keys, scale};
      std::uint64_t cost = 0;
      for (const auto& [key, width, n] : scratch_.seen) {
        const std::uint32_t low = tried.low_bits(key, 8 * sizeof(T));
        cost += std::uint64_t{n} * (std::uint64_t{2} * low + quotient_cost(width > low ? width - low : 0));
      }
      if (cost < best) {
        best = cost;
        values.scale = scale;
      }
    }
    return values;
  }

  Coding write_values(Bytes& out) {
    constexpr std::uint32_t kWidth = 8 * sizeof(T);
    const std::uint32_t n = block_.count;
    const ContextValues values = choose_values();
    const auto is_rice = [&](std::uint32_t i) { return scratch_.keys[i] < values.rice_keys; };
    const auto low_bits = [&](std::uint32_t i) { return values.low_bits(scratch_.keys[i], kWidth); };
    std::uint32_t* exceptions = scratch_.exceptions.data();
    std::uint32_t exception_count = 0;
    for (std::uint32_t i = 0; i < n; ++i) {
      if (!is_rice(i) && scratch_.magnitudes[i] != 0) exceptions[exception_count++] = i;
    }
    Coding coding{PositionCodec::kContext, ValueCodec::kUlp, 0, 0, 0};
    coding.ke = exceptions_parameter(exceptions, exception_count);

    const std::size_t begin = out.size();
    // A value takes its sign and, at most, either low bits, a quotient and its tail, or an exception's gap and length.
    out.resize(begin + padded_bytes(std::uint64_t{n} * (1 + 3 * kWidth + 32) + 256) + 8);
    BitWriter writer(out.data() + begin, 0);
    writer.put(values.rice_keys, 9);
    writer.put(values.scale, 9);
    put_signs(writer);
    for (std::uint32_t i = 0; i < n; ++i) {
      if (!is_rice(i)) continue;
      const std::uint64_t mask = (std::uint64_t{1} << low_bits(i)) - 1;
      writer.put_long(scratch_.magnitudes[i] & mask, low_bits(i));
    }
    scratch_.high.resize(exception_count);
    for (std::uint32_t e = 0; e < exception_count; ++e) scratch_.high[e] = scratch_.magnitudes[exceptions[e]];
    put_exceptions(exceptions, exception_count, coding.ke, scratch_.high.data(), scratch_.gaps.data(), writer);
    const auto quotient = [&](std::uint32_t i) { return scratch_.magnitudes[i] >> low_bits(i); };
    for (std::uint32_t i = 0; i < n; ++i) {
      if (!is_rice(i)) continue;
      const std::uint64_t q = quotient(i);
      writer.put_unary(q < kEscape ? q : kEscape + value_tail_bits(q));
    }
    for (std::uint32_t i = 0; i < n; ++i) {
      if (!is_rice(i) || quotient(i) < kEscape) continue;
      const std::uint32_t bits = value_tail_bits(quotient(i));
      writer.put_long((quotient(i) - (kEscape - 1)) & ((std::uint64_t{1} << bits) - 1), bits);
    }
    out.resize(begin + padded_bytes(writer.position()));
    return coding;
  }

  void put_signs(BitWriter& writer) {
    for (std::uint32_t first = 0; first < block_.count; first += 32) {
      const std::uint32_t count = std::min(block_.count - first, 32U);
      std::uint64_t signs = 0;
      for (std::uint32_t i = 0; i < count; ++i) signs |= std::uint64_t{scratch_.down[first + i]} << i;
      writer.put(signs, count);
    }
  }

  const BlockChanges<T>& block_;
  ContextScratch& scratch_;
  ContextClasses classes_;
  std::array<std::uint32_t, kMostClasses + 1> begin_{};  ///< The first change of each class.
};

}  // namespace

template <class T>
Coding encode_context(const BlockChanges<T>& block, ContextScratch& scratch, Bytes& payload) {
  return ContextEncoder<T>(block, scratch).encode(payload);
}

template Coding encode_context(const BlockChanges<std::uint8_t>&, ContextScratch&, Bytes&);
template Coding encode_context(const BlockChanges<std::uint16_t>&, ContextScratch&, Bytes&);
template Coding encode_context(const BlockChanges<std::uint32_t>&, ContextScratch&, Bytes&);
template Coding encode_context(const BlockChanges<std::uint64_t>&, ContextScratch&, Bytes&);

}  // namespace sparsecast
