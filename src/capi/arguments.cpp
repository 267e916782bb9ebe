// SPDX-License-Identifier: Apache-2.0
#include "capi/arguments.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstdint>

#include "capi/result.hpp"

namespace sparsecast::capi {
namespace {

static_assert(static_cast<int>(scBfloat16) == static_cast<int>(DType::kBF16) &&
              static_cast<int>(scFloat16) == static_cast<int>(DType::kF16) &&
              static_cast<int>(scFloat32) == static_cast<int>(DType::kF32) &&
              static_cast<int>(scFloat64) == static_cast<int>(DType::kF64) &&
              static_cast<int>(scFloat8e4m3) == static_cast<int>(DType::kF8E4M3) &&
              static_cast<int>(scFloat8e5m2) == static_cast<int>(DType::kF8E5M2) &&
              static_cast<int>(scInt8) == static_cast<int>(DType::kI8) &&
              static_cast<int>(scUint8) == static_cast<int>(DType::kU8) &&
              static_cast<int>(scInt16) == static_cast<int>(DType::kI16) &&
              static_cast<int>(scInt32) == static_cast<int>(DType::kI32) &&
              static_cast<int>(scInt64) == static_cast<int>(DType::kI64) &&
              static_cast<int>(scBool) == static_cast<int>(DType::kBool));

constexpr int kMostThreads = 1024;

/// A C program may pass any number for an enumeration.
template <class Enumeration>
int number_of(const Enumeration& value) {
  static_assert(sizeof(Enumeration) == sizeof(int));
  return std::bit_cast<int>(value);
}

TensorSpec spec_of(const scTensor_t& tensor, int index) {
  const auto code = number_of(tensor.dtype);
  const auto dtype = code < 0 || code > 255 ? std::nullopt : dtype_from_code(static_cast<std::uint8_t>(code));
  if (!dtype) throw Error(ErrorCode::kUsage, fmt::format("tensor {}: there is no scDataType_t {}", index, code));
  if (tensor.name == nullptr) throw Error(ErrorCode::kUsage, fmt::format("tensor {} has no name", index));
  if (tensor.ndim < 0 || tensor.ndim > static_cast<int>(TensorTable::kMaxRank) ||
      (tensor.ndim > 0 && tensor.shape == nullptr)) {
    throw Error(ErrorCode::kUsage, fmt::format("tensor '{}' has ndim {} or no shape", tensor.name, tensor.ndim));
  }
  TensorSpec spec{tensor.name, *dtype, {}};
  if (tensor.ndim > 0) spec.shape.assign(tensor.shape, tensor.shape + tensor.ndim);
  return spec;
}

}  // namespace

scConfig_t checked(const scConfig_t* config) {
  if (config == nullptr) return SC_CONFIG_INITIALIZER;
  require_usage(
      config->size == sizeof(scConfig_t) && config->magic == SC_CONFIG_MAGIC && config->version == SC_CONFIG_VERSION,
      "the configuration was not made by SC_CONFIG_INITIALIZER, or by one of another version");
  require_usage(config->timeout_ms >= 1, "a timeout of less than a millisecond");
  require_usage(config->threads >= 0 && config->threads <= kMostThreads, "threads: 0 (all cores) to 1024");
  const auto transport = number_of(config->transport);
  require_usage(transport >= scTransportAuto && transport <= scTransportMpi, "there is no such transport");
  return *config;
}

TensorArguments checked(const scTensor_t* tensors, int count, const scMemory_t& memory) {
  require_usage(tensors != nullptr && count > 0, "no tensors");
  require_usage(number_of(memory) == scMemoryHost || number_of(memory) == scMemoryDevice,
                "there is no such kind of memory");
  TensorArguments arguments;
  std::vector<TensorSpec> specs;
  for (int t = 0; t < count; ++t) specs.push_back(spec_of(tensors[t], t));
  auto table = std::make_shared<const TensorTable>(std::move(specs));
  for (int t = 0; t < count; ++t) {
    const TensorSpec& spec = (*table)[static_cast<std::size_t>(t)];
    void* const data = tensors[t].data;
    if (data == nullptr && spec.elements() != 0) {
      throw Error(ErrorCode::kUsage, fmt::format("tensor '{}' has elements, but no memory", spec.name));
    }
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    if (address % element_size(spec.dtype) != 0 || spec.bytes() > UINTPTR_MAX - address) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("tensor '{}' is not aligned to its elements, or leaves the address space", spec.name));
    }
    arguments.data.push_back(data);
  }
  arguments.table = std::move(table);
  return arguments;
}

}  // namespace sparsecast::capi
