// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sparsecast/device.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast::bench {

/// Options of the command line; --help describes them.
struct CudaBenchOptions {
  std::vector<double> gib = {4};  ///< Size of each array.
  std::vector<double> percent = {0.1, 0.3, 1, 2, 5, 20};
  std::vector<DType> dtypes = {DType::kBF16, DType::kF8E4M3, DType::kF32};
  int warm_up = 2;
  int repeat = 7;
  std::uint64_t seed = 1;
  std::uint64_t chunk_mib = kDefaultChunkBytes >> 20;
  std::uint64_t small_tensors = 5000;  ///< Number of tensors in the case of many tensors; 0 leaves it out.
  int l2_fetch_bytes = 0;              ///< cudaLimitMaxL2FetchGranularity: 32, 64 or 128; 0 leaves it.
  bool variants = false;               ///< Also time what is still to be chosen.
  bool machine = false;                ///< Only describe the device.
  std::string trace;
  std::string json;
  std::string commit = "unknown";
  std::string sources = "unknown";  ///< Hash of cuda/.
};

/// Parses the command line. Returns the exit code if the program is to end: after --help or wrong arguments.
std::optional<int> parse_options(int argc, char** argv, CudaBenchOptions& options);

}  // namespace sparsecast::bench
