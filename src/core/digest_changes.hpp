// SPDX-License-Identifier: Apache-2.0
#pragma once

// The change of a state digest, summed over changed elements in batches for vector instructions.

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/digest_kernels.hpp"
#include "core/tensor_view.hpp"

namespace sparsecast {

/// Sums the changes of the state digest that changed elements of one tensor cause; T is the unsigned integer type with
/// the size of an element.
template <class T>
class DigestChanges {
 public:
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): the batch is written before it is read.
  explicit DigestChanges(const Hash128& key) : key_(key) {}

  /// Calls write(i, record) for each i in [0, count). `write` may call record(at, before, after), which adds a change
  /// from the bits `before` to the bits `after`, for the element whose index in the digest is `at`.
  template <class Write>
  void add_each(std::uint32_t count, Write write) {
    for (std::uint32_t i = 0; i < count;) {
      const std::uint32_t end = std::min(count, i + (kBatch - count_));
      std::uint32_t slot = count_;  // A local copy, which the compiler knows that no write alters.
      const auto record = [&](std::uint64_t at, T before, T after) {
        counters_[slot] = digest_counter(key_.lo, at);
        before_[slot] = before;
        after_[slot++] = after;
      };
      for (; i < end; ++i) write(i, record);
      count_ = slot;
      if (count_ == kBatch) flush();
    }
  }
  void add(std::uint64_t at, T before, T after) {
    add_each(1, [&](std::uint32_t, const auto& record) { record(at, before, after); });
  }

  /// Adds the changes of `count` elements from before[i] to after[i]; element i has index first + offsets[i] in the
  /// digest.
  void add_run(std::uint64_t first, const std::uint32_t* offsets, const T* before, const T* after,
               std::uint32_t count) {
    std::uint32_t i = 0;
    const std::uint64_t counter = digest_counter(key_.lo, first);
    while (const std::uint32_t summed =
               cpu::sum_changes_at(counter, offsets + i, key_.hi, before + i, after + i, count - i, sizeof(T), sum_)) {
      i += summed;
    }
    for (; i < count; ++i) add(first + offsets[i], before[i], after[i]);
  }

  /// Returns the sum of all added changes, and resets it to zero.
  DigestSum take() {
    flush();
    return std::exchange(sum_, {});
  }

 private:
  static constexpr std::uint32_t kBatch = cpu::kMostSummedChanges;

  void flush() {
    std::uint32_t i = cpu::sum_changes(counters_, key_.hi, before_, after_, count_, sizeof(T), sum_);
    for (; i < count_; ++i) {
      digest_change(sum_, digest_weight(counters_[i], key_.hi), digest_word(before_[i]), digest_word(after_[i]));
    }
    count_ = 0;
  }

  Hash128 key_;
  DigestSum sum_;
  std::uint32_t count_ = 0;
  std::uint64_t counters_[kBatch];
  T before_[kBatch];
  T after_[kBatch];
};

}  // namespace sparsecast
