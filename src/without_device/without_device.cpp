// SPDX-License-Identifier: Apache-2.0

// Device functions of a library that was built without CUDA: all of them throw Error{kUnsupported}.

#include "core/masked_copy.hpp"
#include "memory/memory_backend.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/quantize.hpp"

namespace sparsecast {

namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorCode::kUnsupported, "this build of the library has no device backend: it was made without CUDA");
}

}  // namespace

bool device_backend_available() noexcept { return false; }

std::shared_ptr<MemoryBackend> make_device_memory(const DeviceOptions&, bool) { refuse(); }

void device_nan_fill(DType, void*, std::uint64_t, CUstream_st*) { refuse(); }
void device_masked_copy(const MaskedCopyLayout&, const void*, void*, CUstream_st*) { refuse(); }

void device_block_amax(const MatrixShard&, const void*, float*, CUstream_st*) { refuse(); }
void device_quantize(const MatrixShard&, const void*, const QuantizedShard&, const GivenAmax&, CUstream_st*) {
  refuse();
}

}  // namespace sparsecast
