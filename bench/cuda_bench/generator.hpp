// SPDX-License-Identifier: Apache-2.0
#pragma once

// Generates weights before and after a step on the device. Everything is a function of the element's index: a hash
// decides the old bits (sign, mantissa, one of eight exponents), whether the element changes (with the given density,
// independently of its neighbours), and by how many ulps: one in nine of ten changes, else 2 to 8, for fp32 up to
// 65536. Any version of any element can therefore be generated again and checked without a copy. The changes of real
// steps are clustered, which only --trace shows.

#include <cstdint>

#include "cuda/common/runtime.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast::bench {

/// What decides every bit of the generated weights.
struct Recipe {
  DType dtype = DType::kBF16;  ///< kBF16, kF8E4M3 or kF32.
  std::uint64_t seed = 1;
  std::uint32_t threshold = 0;  ///< Density times 2^32.
};
/// Returns the recipe for a density, a share from 0 to 1. Throws Error{kUsage} for a dtype without a generator.
Recipe make_recipe(DType dtype, double density, std::uint64_t seed);

enum class Version : std::uint8_t { kOld, kNew };

// These enqueue on `stream` and return. `elements` is a multiple of 64.

/// Fills an array with one version of the weights.
void fill(void* d_elements, std::uint64_t elements, const Recipe& recipe, Version version, cudaStream_t stream);
/// Fills fp32 masters whose cast to bf16 is the new version; they have low bits that the cast rounds away.
void fill_masters(float* d_masters, std::uint64_t elements, const Recipe& recipe, cudaStream_t stream);
/// Sets bit i of the mask if element i changes, and clears it otherwise.
void fill_mask(std::uint64_t* d_mask, std::uint64_t elements, const Recipe& recipe, cudaStream_t stream);

/// Number of elements and sectors that a step changes.
struct Touched {
  std::uint64_t changed = 0;
  std::uint64_t sectors = 0;  ///< 32-byte sectors with at least one change.
};
/// Counts what changes in an array that starts at a sector. Waits for the stream.
Touched count_touched(std::uint64_t elements, const Recipe& recipe, cudaStream_t stream);
/// Counts elements whose bits differ from that version's. Waits for the stream.
std::uint64_t count_wrong(const void* d_elements, std::uint64_t elements, const Recipe& recipe, Version version,
                          cudaStream_t stream);
/// Counts words of 4 bytes in which two arrays differ. Waits for the stream.
std::uint64_t count_differing_words(const void* d_a, const void* d_b, std::uint64_t words, cudaStream_t stream);

}  // namespace sparsecast::bench
