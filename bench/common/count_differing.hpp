// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/word.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast::bench {

/// Counts the elements of `element_bytes` bytes whose bits differ. Both arrays have the same size.
inline std::uint64_t count_differing(ConstBytes found, ConstBytes expected, std::size_t element_bytes) {
  return with_word(element_bytes, [&]<class T>() {
    std::uint64_t differing = 0;
    for (std::size_t i = 0; i < found.size() / sizeof(T); ++i) {
      differing += load_word<T>(found.data(), i) != load_word<T>(expected.data(), i) ? 1 : 0;
    }
    return differing;
  });
}

}  // namespace sparsecast::bench
