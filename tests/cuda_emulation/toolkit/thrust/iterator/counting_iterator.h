// SPDX-License-Identifier: Apache-2.0
#pragma once

// The part of counting_iterator that cuda_bench uses: an iterator whose elements are its positions.

namespace thrust {

template <class T>
struct counting_iterator {
  explicit counting_iterator(T begin) : first(begin) {}
  T operator[](T index) const { return static_cast<T>(first + index); }
  T first;
};

}  // namespace thrust
