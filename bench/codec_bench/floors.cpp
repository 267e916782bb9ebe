// SPDX-License-Identifier: Apache-2.0
#include "codec_bench/floors.hpp"

#include <cmath>
#include <map>

#include "codec/codec_common.hpp"
#include "codec/context_model.hpp"
#include "core/word.hpp"

namespace sparsecast::bench {
namespace {

/// Bits of choosing symbols that occur so often.
double entropy(const std::vector<double>& counts) {
  double total = 0;
  double bits = 0;
  for (const double count : counts) {
    total += count;
    if (count > 0) bits -= count * std::log2(count);
  }
  return total > 0 ? bits + total * std::log2(total) : 0;
}

/// What is counted of the elements of a class.
struct Class {
  double elements = 0;
  std::map<std::uint64_t, double> distances;  ///< Coded words, by how often they occur.

  double bits() const {
    std::vector<double> counts;
    double changed = 0;
    for (const auto& [word, count] : distances) {
      counts.push_back(count);
      changed += count;
    }
    return entropy({changed, elements - changed}) + entropy(counts);
  }
  void add(const Class& other) {
    elements += other.elements;
    for (const auto& [word, count] : other.distances) distances[word] += count;
  }
};

template <class T>
Floors floors_of_tensor(DType dtype, ConstBytes before, ConstBytes after) {
  const bool floating = is_floating(dtype);
  const ExponentField field = exponent_field(dtype);
  std::vector<Class> classes(kContextKeys);
  for (std::size_t i = 0; i < before.size() / sizeof(T); ++i) {
    const T old_bits = load_word<T>(before.data(), i);
    const T new_bits = load_word<T>(after.data(), i);
    Class& own = classes[floating ? key_of(old_bits, field) : 0];
    own.elements += 1;
    if (old_bits != new_bits) own.distances[ulp_difference(new_bits, old_bits, ulp_order(dtype))] += 1;
  }
  Floors floors;
  Class all;
  for (const Class& own : classes) {
    floors.by_exponent += own.bits();
    all.add(own);
  }
  floors.by_tensor = all.bits();
  return floors;
}

}  // namespace

Floors& Floors::operator+=(const Floors& other) {
  by_tensor += other.by_tensor;
  by_exponent += other.by_exponent;
  return *this;
}

std::vector<std::pair<std::string, double>> Floors::rows() const {
  return {{"entropy by tensor", by_tensor}, {"entropy by tensor, exponent", by_exponent}};
}

Floors floors_of(const TensorTable& table, const std::vector<ConstBytes>& before,
                 const std::vector<ConstBytes>& after) {
  Floors floors;
  for (std::size_t t = 0; t < table.size(); ++t) {
    with_word(element_size(table[t].dtype),
              [&]<class T>() { floors += floors_of_tensor<T>(table[t].dtype, before[t], after[t]); });
  }
  return floors;
}

}  // namespace sparsecast::bench
