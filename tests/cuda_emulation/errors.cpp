// SPDX-License-Identifier: Apache-2.0

// Names of the errors of the emulated runtime.

#include <algorithm>
#include <array>

#include "cuda_emulation/runtime.hpp"

namespace {

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};

constexpr std::array kTexts = {
    ErrorText{cudaSuccess, "cudaSuccess", "no error"},
    ErrorText{cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    ErrorText{cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    ErrorText{cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    ErrorText{cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    ErrorText{cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    ErrorText{cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
              "operation not permitted when stream is capturing"},
};

/// Returns the text of an error, or one for those that no test reads.
const ErrorText& text_of(cudaError_t error) {
  static constexpr ErrorText kOther{cudaErrorInvalidValue, "cudaErrorOther", "another error"};
  const auto found = std::ranges::find(kTexts, error, &ErrorText::error);
  return found != kTexts.end() ? *found : kOther;
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) { return text_of(error).name; }
const char* cudaGetErrorString(cudaError_t error) { return text_of(error).text; }
