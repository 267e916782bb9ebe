#include "cuda/common/launch.hpp"
#include "cuda/encode/encode_launchers.hpp"

namespace sparsecast::cuda {
namespace {

constexpr unsigned kBlocks = 8;

__global__ void or_words(std::uint64_t* flags, const std::uint64_t* words, std::uint64_t count) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * kThreads;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) flags[i] |= words[i];
}

}  // namespace

void launch_or_words(std::uint64_t* flags, const std::uint64_t* words, std::uint64_t count,
                     const DeviceStream& device) {
  if (count == 0) return;
  launch(or_words, grid_for((count + kThreads - 1) / kThreads, kBlocks, device), kThreads, device.stream, flags, words,
         count);
}

}  // namespace sparsecast::cuda
