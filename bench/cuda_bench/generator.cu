// SPDX-License-Identifier: Apache-2.0
#include "generator.hpp"

#include "cuda/common/device_memory.hpp"
#include "cuda/common/launch.hpp"
#include "cuda_bench/grid.hpp"

namespace sparsecast::bench {
namespace {

constexpr unsigned kBlocks = 4096;

__device__ std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9U;
  x = (x ^ x >> 27) * 0x94D049BB133111EBU;
  return x ^ x >> 31;
}

struct Draw {
  std::uint64_t bits;    ///< Decide the old value.
  std::uint64_t change;  ///< Decide whether and how the element changes.
};
__device__ Draw draw(const Recipe& recipe, std::uint64_t index) {
  const std::uint64_t bits = mixed((index + 1) * 0x9E3779B97F4A7C15U + recipe.seed);
  return {bits, mixed(bits + 0xD1342543DE82EF95U)};
}

__device__ bool changes(const Recipe& recipe, const Draw& drawn) {
  return static_cast<std::uint32_t>(drawn.change >> 32) < recipe.threshold;
}

/// Exponents far from zero, infinity and NaN, so that a step of a few ulps changes no sign.
__device__ std::uint32_t old_bits(DType dtype, std::uint64_t drawn) {
  const auto low = static_cast<std::uint32_t>(drawn);
  const auto exponent = static_cast<std::uint32_t>(drawn >> 32 & 7);
  const auto sign = static_cast<std::uint32_t>(drawn >> 63);
  switch (dtype) {
    case DType::kBF16:
      return sign << 15 | (112 + exponent) << 7 | (low & 0x7F);
    case DType::kF8E4M3:
      return sign << 7 | (4 + exponent) << 3 | (low & 7);
    default:
      return sign << 31 | (112 + exponent) << 23 | (low & 0x7FFFFF);
  }
}

__device__ std::uint32_t ulps(DType dtype, std::uint64_t drawn) {
  const auto low = static_cast<std::uint32_t>(drawn);
  if (dtype == DType::kF32) return 1 + (low >> 8 & 0xFFFF);
  return (low >> 1 & 0xFFFF) < 58982 ? 1 : 2 + (low >> 20) % 7;
}

__device__ std::uint32_t element(const Recipe& recipe, std::uint64_t index, Version version) {
  const Draw drawn = draw(recipe, index);
  const std::uint32_t bits = old_bits(recipe.dtype, drawn.bits);
  if (version == Version::kOld || !changes(recipe, drawn)) return bits;
  const std::uint32_t step = ulps(recipe.dtype, drawn.change);
  return (drawn.change & 1) != 0 ? bits + step : bits - step;
}

template <class T>
__global__ void fill_elements(T* elements, std::uint64_t words, Recipe recipe, Version version) {
  constexpr std::uint32_t kEach = 16 / sizeof(T);
  auto* const vectors = reinterpret_cast<uint4*>(elements);
  for (std::uint64_t v = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x; v < words;
       v += std::uint64_t{gridDim.x} * kThreads) {
    std::uint32_t parts[4] = {};
    SPARSECAST_UNROLL
    for (std::uint32_t e = 0; e < kEach; ++e) {
      parts[e * sizeof(T) / 4] |= element(recipe, v * kEach + e, version) << e * sizeof(T) % 4 * 8;
    }
    vectors[v] = uint4{parts[0], parts[1], parts[2], parts[3]};
  }
}

__global__ void fill_master_elements(std::uint32_t* masters, std::uint64_t elements, Recipe recipe) {
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements;
       i += std::uint64_t{gridDim.x} * kThreads) {
    // Moves the value by less than half an ulp of bf16, up or down.
    const auto noise = static_cast<std::uint32_t>(mixed(i + recipe.seed) & 0xFFFE) - 0x7FFF;
    masters[i] = (element(recipe, i, Version::kNew) << 16) + noise;
  }
}

__global__ void fill_mask_words(std::uint64_t* mask, std::uint64_t words, Recipe recipe) {
  for (std::uint64_t w = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x; w < words;
       w += std::uint64_t{gridDim.x} * kThreads) {
    std::uint64_t bits = 0;
    for (std::uint32_t b = 0; b < 64; ++b) {
      bits |= std::uint64_t{changes(recipe, draw(recipe, w * 64 + b)) ? 1U : 0U} << b;
    }
    mask[w] = bits;
  }
}

__device__ void add(std::uint64_t* total, std::uint64_t own) {
  for (unsigned lanes = 16; lanes != 0; lanes /= 2) own += __shfl_xor_sync(~0U, own, static_cast<int>(lanes));
  if (threadIdx.x % 32 == 0 && own != 0) atomicAdd(reinterpret_cast<unsigned long long*>(total), own);
}

__global__ void count_touched_sectors(std::uint64_t sectors, std::uint32_t each, Recipe recipe, std::uint64_t* totals) {
  std::uint64_t changed = 0;
  std::uint64_t touched = 0;
  for (std::uint64_t s = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x; s < sectors;
       s += std::uint64_t{gridDim.x} * kThreads) {
    std::uint32_t here = 0;
    for (std::uint32_t e = 0; e < each; ++e) here += changes(recipe, draw(recipe, s * each + e)) ? 1U : 0U;
    changed += here;
    touched += here != 0 ? 1 : 0;
  }
  add(totals, changed);
  add(totals + 1, touched);
}

template <class T>
__global__ void count_wrong_elements(const T* found, std::uint64_t elements, Recipe recipe, Version version,
                                     std::uint64_t* total) {
  std::uint64_t wrong = 0;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements;
       i += std::uint64_t{gridDim.x} * kThreads) {
    wrong += found[i] != static_cast<T>(element(recipe, i, version)) ? 1 : 0;
  }
  add(total, wrong);
}

__global__ void count_words(const std::uint32_t* a, const std::uint32_t* b, std::uint64_t words, std::uint64_t* total) {
  std::uint64_t differing = 0;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < words;
       i += std::uint64_t{gridDim.x} * kThreads) {
    differing += a[i] != b[i] ? 1 : 0;
  }
  add(total, differing);
}

/// Two sums on the device that begin at zero.
class Totals {
 public:
  explicit Totals(cudaStream_t stream) : stream_(stream) {
    cuda::check(cudaMemsetAsync(memory_.as(), 0, memory_.bytes(), stream_), "cudaMemsetAsync");
  }
  std::uint64_t* device() const { return memory_.as<std::uint64_t>(); }
  Touched read() const {
    Touched totals;
    cuda::copy_async(&totals, memory_.as(), memory_.bytes(), cudaMemcpyDeviceToHost, stream_);
    cuda::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    return totals;
  }

 private:
  cuda::DeviceMemory memory_{sizeof(Touched)};
  cudaStream_t stream_;
};

/// Calls work with a pointer of the dtype's element type.
template <class Work>
void with_elements(DType dtype, const Work& work) {
  switch (element_size(dtype)) {
    case 1:
      return work(std::uint8_t{});
    case 2:
      return work(std::uint16_t{});
    default:
      return work(std::uint32_t{});
  }
}

}  // namespace

Recipe make_recipe(DType dtype, double density, std::uint64_t seed) {
  if (dtype != DType::kBF16 && dtype != DType::kF8E4M3 && dtype != DType::kF32) {
    throw Error(ErrorCode::kUsage, "there is a generator for BF16, F8_E4M3 and F32 only");
  }
  return {dtype, seed, static_cast<std::uint32_t>(density * 4294967295.0)};
}

void fill(void* d_elements, std::uint64_t elements, const Recipe& recipe, Version version, cudaStream_t stream) {
  with_elements(recipe.dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::uint64_t vectors = elements / (16 / sizeof(T));
    cuda::launch(fill_elements<T>, blocks_for(vectors, kBlocks), kThreads, stream, static_cast<T*>(d_elements), vectors,
                 recipe, version);
  });
}

void fill_masters(float* d_masters, std::uint64_t elements, const Recipe& recipe, cudaStream_t stream) {
  cuda::launch(fill_master_elements, blocks_for(elements, kBlocks), kThreads, stream,
               reinterpret_cast<std::uint32_t*>(d_masters), elements, recipe);
}

void fill_mask(std::uint64_t* d_mask, std::uint64_t elements, const Recipe& recipe, cudaStream_t stream) {
  cuda::launch(fill_mask_words, blocks_for(elements / 64, kBlocks), kThreads, stream, d_mask, elements / 64, recipe);
}

Touched count_touched(std::uint64_t elements, const Recipe& recipe, cudaStream_t stream) {
  const Totals totals(stream);
  const auto each = static_cast<std::uint32_t>(32 / element_size(recipe.dtype));
  cuda::launch(count_touched_sectors, blocks_for(elements / each, kBlocks), kThreads, stream, elements / each, each,
               recipe, totals.device());
  return totals.read();
}

std::uint64_t count_wrong(const void* d_elements, std::uint64_t elements, const Recipe& recipe, Version version,
                          cudaStream_t stream) {
  const Totals totals(stream);
  with_elements(recipe.dtype, [&](auto zero) {
    using T = decltype(zero);
    cuda::launch(count_wrong_elements<T>, blocks_for(elements, kBlocks), kThreads, stream,
                 static_cast<const T*>(d_elements), elements, recipe, version, totals.device());
  });
  return totals.read().changed;
}

std::uint64_t count_differing_words(const void* d_a, const void* d_b, std::uint64_t words, cudaStream_t stream) {
  const Totals totals(stream);
  cuda::launch(count_words, blocks_for(words, kBlocks), kThreads, stream, static_cast<const std::uint32_t*>(d_a),
               static_cast<const std::uint32_t*>(d_b), words, totals.device());
  return totals.read().changed;
}

}  // namespace sparsecast::bench
