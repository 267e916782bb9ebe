#pragma once

// Weights before and after a step, made on the device. Everything is a function of the element's index: a hash decides
// the old bits (sign, mantissa, one of eight exponents), whether the element changes (with the density asked for,
// independently of its neighbours), and by how many ulps: one in nine of ten changes, else 2 to 8; for fp32 up to
// 65536. Real steps cluster; see --trace. So any version of any element can be made again, and checked, without a copy.

#include <cstdint>

#include "cuda/common/runtime.hpp"
#include "sparsecast/dtype.hpp"

namespace sparsecast::bench {

struct Recipe {
  DType dtype = DType::kBF16;  ///< kBF16, kF8E4M3 or kF32.
  std::uint64_t seed = 1;
  std::uint32_t threshold = 0;  ///< Density times 2^32.
};
/// `density` is a share, 0 to 1. Throws Error{kUsage} for a dtype without a generator.
Recipe make_recipe(DType dtype, double density, std::uint64_t seed);

enum class Version : std::uint8_t { kOld, kNew };

// All enqueue on `stream` and return; `elements` is a multiple of 64.

void fill(void* d_elements, std::uint64_t elements, const Recipe& recipe, Version version, cudaStream_t stream);
/// fp32 masters whose cast to bf16 is the new version, with bits that the cast rounds away.
void fill_masters(float* d_masters, std::uint64_t elements, const Recipe& recipe, cudaStream_t stream);
/// Bit i of the mask: element i changes.
void fill_mask(std::uint64_t* d_mask, std::uint64_t elements, const Recipe& recipe, cudaStream_t stream);

struct Touched {
  std::uint64_t changed = 0;
  std::uint64_t sectors = 0;  ///< 32-byte sectors with at least one change.
};
/// Of an array that starts at a sector. Waits.
Touched count_touched(std::uint64_t elements, const Recipe& recipe, cudaStream_t stream);
/// Elements that are not bit for bit of that version. Waits.
std::uint64_t count_wrong(const void* d_elements, std::uint64_t elements, const Recipe& recipe, Version version,
                          cudaStream_t stream);
/// Words of 4 bytes in which two arrays differ. Waits.
std::uint64_t count_differing_words(const void* d_a, const void* d_b, std::uint64_t words, cudaStream_t stream);

}  // namespace sparsecast::bench
