// SPDX-License-Identifier: Apache-2.0
#include "machine.hpp"

#include <nlohmann/json.hpp>

#include "cuda/common/runtime.hpp"

namespace sparsecast::bench {

nlohmann::json describe_machine() {
  int device = 0;
  cuda::check(cudaGetDevice(&device), "cudaGetDevice");
  cudaDeviceProp properties{};
  cuda::check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    cuda::check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
    return value;
  };
  int runtime = 0;
  int driver = 0;
  cuda::check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  cuda::check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  return {{"device", properties.name},
          {"compute_capability", std::to_string(properties.major) + "." + std::to_string(properties.minor)},
          {"multiprocessors", properties.multiProcessorCount},
          {"memory_bytes", properties.totalGlobalMem},
          {"l2_bytes", properties.l2CacheSize},
          {"clock_khz", attribute(cudaDevAttrClockRate)},
          {"memory_clock_khz", attribute(cudaDevAttrMemoryClockRate)},
          {"memory_bus_bits", attribute(cudaDevAttrGlobalMemoryBusWidth)},
          {"runtime_version", runtime},
          {"driver_version", driver}};
}

}  // namespace sparsecast::bench
