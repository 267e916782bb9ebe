// SPDX-License-Identifier: Apache-2.0
#include "codec_bench/scan.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec_bench/scan.cpp"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sparsecast::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Counts the differing elements, four vectors per iteration.
template <class T>
std::uint64_t ScanWords(const std::byte* current, const std::byte* base, std::uint64_t count) {
  const hn::ScalableTag<T> d;
  const std::uint64_t lanes = hn::Lanes(d);
  const T* a = reinterpret_cast<const T*>(current);
  const T* b = reinterpret_cast<const T*>(base);
  std::uint64_t differing = 0;
  std::uint64_t i = 0;
  const auto count_at = [&](std::uint64_t at)
                            HWY_ATTR { return hn::CountTrue(d, hn::Ne(hn::LoadU(d, a + at), hn::LoadU(d, b + at))); };
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    differing += count_at(i) + count_at(i + lanes) + count_at(i + 2 * lanes) + count_at(i + 3 * lanes);
  }
  for (; i < count; ++i) differing += a[i] != b[i] ? 1 : 0;
  return differing;
}

std::uint64_t Scan(const std::byte* current, const std::byte* base, std::uint64_t count, std::size_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return ScanWords<std::uint8_t>(current, base, count);
    case 2:
      return ScanWords<std::uint16_t>(current, base, count);
    case 4:
      return ScanWords<std::uint32_t>(current, base, count);
    default:
      return ScanWords<std::uint64_t>(current, base, count);
  }
}

}  // namespace sparsecast::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsecast::bench {
HWY_EXPORT(Scan);

std::uint64_t scan(const std::byte* current, const std::byte* base, std::uint64_t count, std::size_t element_bytes) {
  return HWY_DYNAMIC_DISPATCH(Scan)(current, base, count, element_bytes);
}

}  // namespace sparsecast::bench
#endif  // HWY_ONCE
