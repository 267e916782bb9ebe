// SPDX-License-Identifier: Apache-2.0
#include "capi/boundary.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <new>

namespace sparsecast::capi {
namespace {

thread_local std::string last_sentence;

#define SPARSECAST_SAME(result, code) static_assert(static_cast<int>(result) == static_cast<int>(ErrorCode::code))
SPARSECAST_SAME(scInvalidUsage, kUsage);
SPARSECAST_SAME(scCorrupt, kCorrupt);
SPARSECAST_SAME(scUnsupported, kUnsupported);
SPARSECAST_SAME(scTableMismatch, kTableMismatch);
SPARSECAST_SAME(scForeignStream, kForeignStream);
SPARSECAST_SAME(scStaleVersion, kStaleVersion);
SPARSECAST_SAME(scVersionGap, kVersionGap);
SPARSECAST_SAME(scWrongBase, kWrongBase);
SPARSECAST_SAME(scDigestMismatch, kDigestMismatch);
SPARSECAST_SAME(scDirty, kDirty);
SPARSECAST_SAME(scIncomplete, kIncomplete);
SPARSECAST_SAME(scIoError, kIo);
SPARSECAST_SAME(scTimeout, kTimeout);
SPARSECAST_SAME(scPeerFailed, kPeerFailed);
SPARSECAST_SAME(scUnauthenticated, kUnauthenticated);
SPARSECAST_SAME(scGroupMismatch, kGroupMismatch);
SPARSECAST_SAME(scDeviceError, kDevice);
#undef SPARSECAST_SAME
static_assert(static_cast<int>(scInternalError) < static_cast<int>(ErrorCode::kFenced));
static_assert(static_cast<int>(ErrorCode::kDevice) + 1 == static_cast<int>(scOutOfMemory),
              "a new ErrorCode needs a scResult_t");

}  // namespace

scResult_t result_of(ErrorCode code) noexcept {
  return code >= ErrorCode::kFenced ? scInternalError : static_cast<scResult_t>(code);
}

const char* last_message() noexcept { return last_sentence.c_str(); }

void keep_message(const char* sentence) noexcept {
  try {
    last_sentence = sentence;
  } catch (...) {
    last_sentence.clear();
  }
}

scResult_t take_exception(std::string* sentence) noexcept {
  scResult_t result = scInternalError;
  try {
    throw;
  } catch (const Error& error) {
    result = result_of(error.code());
    keep_message(error.what());
  } catch (const std::bad_alloc&) {
    result = scOutOfMemory;
    keep_message("out of memory");
  } catch (const std::exception& error) {
    keep_message(error.what());
  } catch (...) {
    keep_message("an exception of unknown type");
  }
  if (sentence != nullptr) {
    try {
      *sentence = last_sentence;
    } catch (...) {
      sentence->clear();
    }
  }
  return result;
}

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
              static_cast<int>(scBool) == static_cast<int>(DType::kBool) &&
              static_cast<int>(scInt4x2) == static_cast<int>(DType::kI4X2) &&
              static_cast<int>(scFloat4e2m1x2) == static_cast<int>(DType::kF4X2) &&
              static_cast<int>(scFloat8e8m0) == static_cast<int>(DType::kF8E8M0) &&
              static_cast<int>(scUint16) == static_cast<int>(DType::kU16) &&
              static_cast<int>(scUint32) == static_cast<int>(DType::kU32) &&
              static_cast<int>(scUint64) == static_cast<int>(DType::kU64) &&
              static_cast<int>(scComplex64) == static_cast<int>(DType::kC64) &&
              static_cast<int>(scFloat8e4m3fnuz) == static_cast<int>(DType::kF8E4M3Fnuz) &&
              static_cast<int>(scFloat8e5m2fnuz) == static_cast<int>(DType::kF8E5M2Fnuz) &&
              static_cast<int>(scFloat6e2m3) == static_cast<int>(DType::kF6E2M3) &&
              static_cast<int>(scFloat6e3m2) == static_cast<int>(DType::kF6E3M2));

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

extern "C" {

const char* scGetErrorString(scResult_t result) {
  switch (result) {
    case scSuccess:
      return "success";
    case scInvalidUsage:
      return "usage: an argument or the order of calls is wrong";
    case scCorrupt:
      return "corrupt: bytes of a peer are torn or altered";
    case scUnsupported:
      return "unsupported: this build or this machine cannot do that";
    case scTableMismatch:
      return "table_mismatch: the ends carry different tensors";
    case scForeignStream:
      return "foreign_stream: a record of another stream";
    case scStaleVersion:
      return "stale_version: the version is already there";
    case scVersionGap:
      return "version_gap: a delta starts from a version that is not here";
    case scWrongBase:
      return "wrong_base: the version is right, the bytes are not";
    case scDigestMismatch:
      return "digest_mismatch: the result was wrong and was undone";
    case scDirty:
      return "dirty: the content is known to be wrong";
    case scIncomplete:
      return "incomplete: records are missing";
    case scIoError:
      return "io: the operating system refused";
    case scTimeout:
      return "timeout: a peer was silent until the deadline";
    case scPeerFailed:
      return "peer_failed: another rank failed";
    case scUnauthenticated:
      return "unauthenticated: the other end does not hold the same unique id";
    case scGroupMismatch:
      return "group_mismatch: the ranks disagree";
    case scDeviceError:
      return "device: the device, its driver or NCCL reported an error";
    case scOutOfMemory:
      return "out of memory";
    case scInternalError:
      return "internal error";
  }
  return "unknown result";
}

const char* scGetLastErrorMessage(void) { return sparsecast::capi::last_message(); }
}
