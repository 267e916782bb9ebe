// SPDX-License-Identifier: Apache-2.0
#include "codec/word_kernels.hpp"

#include "codec/codec_common.hpp"
#include "core/word.hpp"

// The instruction set that compresses vectors of small words.
#ifndef HWY_WANT_AVX3_DL
#define HWY_WANT_AVX3_DL
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/word_kernels.cpp"
#include <hwy/foreach_target.h>  // Compiles this file once for each instruction set.
//
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
// Capitals, as Highway has them: the functions that call these have the same words.
// NOLINTBEGIN(readability-identifier-naming)
namespace sparsecast::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// ordered() of bits: those of a float are inverted, all of them or the sign alone.
template <class D, class V>
HWY_INLINE V Ordered(D d, V bits, V if_negative, V if_positive) {
  using T = hn::TFromD<D>;
  const auto sign = hn::Set(d, static_cast<T>(T{1} << (8 * sizeof(T) - 1)));
  const auto negative = hn::Ne(hn::And(bits, sign), hn::Zero(d));
  return hn::Xor(bits, hn::IfThenElse(negative, if_negative, if_positive));
}

template <class T>
std::uint32_t CodeChangedWords(const std::byte* current, const std::byte* old, std::uint32_t count, ValueCodec values,
                               bool floating, T* coded, T* before, T* after) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::uint32_t>(hn::Lanes(d));
  const auto* a = reinterpret_cast<const T*>(current);
  const auto* b = reinterpret_cast<const T*>(old);
  const auto if_negative = hn::Set(d, static_cast<T>(floating ? ~T{0} : T{0}));
  const auto if_positive = hn::Set(d, static_cast<T>(floating ? T{1} << (8 * sizeof(T) - 1) : T{0}));
  std::uint32_t n = 0;
  std::uint32_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto new_bits = hn::LoadU(d, a + i);
    const auto old_bits = hn::LoadU(d, b + i);
    const auto changed = hn::Ne(new_bits, old_bits);
    auto word = new_bits;
    if (values == ValueCodec::kXor) word = hn::Xor(new_bits, old_bits);
    if (values == ValueCodec::kUlp) {
      word = hn::Sub(Ordered(d, new_bits, if_negative, if_positive), Ordered(d, old_bits, if_negative, if_positive));
    }
    hn::StoreU(hn::Compress(word, changed), d, coded + n);
    if (before != nullptr) {
      hn::StoreU(hn::Compress(old_bits, changed), d, before + n);
      hn::StoreU(hn::Compress(new_bits, changed), d, after + n);
    }
    n += static_cast<std::uint32_t>(hn::CountTrue(d, changed));
  }
  for (; i < count; ++i) {
    const T new_bits = load_word<T>(current, i);
    const T old_bits = load_word<T>(old, i);
    if (new_bits == old_bits) continue;
    coded[n] = values == ValueCodec::kUlp   ? ulp_difference(new_bits, old_bits, floating)
               : values == ValueCodec::kXor ? static_cast<T>(new_bits ^ old_bits)
                                            : new_bits;
    if (before != nullptr) {
      before[n] = old_bits;
      after[n] = new_bits;
    }
    ++n;
  }
  return n;
}

std::uint32_t CodeChanged(const std::byte* current, const std::byte* old, std::uint32_t count,
                          std::size_t element_bytes, ValueCodec values, bool floating, void* coded, void* before,
                          void* after) {
  return with_word(element_bytes, [&]<class T>() {
    return CodeChangedWords(current, old, count, values, floating, static_cast<T*>(coded), static_cast<T*>(before),
                            static_cast<T*>(after));
  });
}

}  // namespace sparsecast::cpu::HWY_NAMESPACE
// NOLINTEND(readability-identifier-naming)
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsecast::cpu {

HWY_EXPORT(CodeChanged);

std::uint32_t code_changed(const std::byte* current, const std::byte* old, std::uint32_t count,
                           std::size_t element_bytes, ValueCodec values, bool floating, void* coded, void* before,
                           void* after) {
  return HWY_DYNAMIC_DISPATCH(CodeChanged)(current, old, count, element_bytes, values, floating, coded, before, after);
}

}  // namespace sparsecast::cpu
#endif  // HWY_ONCE
