// The device's half of sparsecast/nan_masked.hpp in a library that has no device backend.

#include "core/masked_copy.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

[[noreturn]] void refuse() { throw Error(ErrorCode::kUnsupported, "this build of sparsecast has no device backend"); }

}  // namespace

void device_nan_fill(DType, void*, std::uint64_t, CUstream_st*) { refuse(); }
void device_masked_copy(const MaskedCopyLayout&, const void*, void*, CUstream_st*) { refuse(); }

}  // namespace sparsecast
