// The device's half of sparsecast/quantize.hpp in a library that has no device backend.

#include "sparsecast/quantize.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

[[noreturn]] void refuse() { throw Error(ErrorCode::kUnsupported, "this build of sparsecast has no device backend"); }

}  // namespace

void device_block_amax(const MatrixShard&, const void*, float*, CUstream_st*) { refuse(); }
void device_quantize_with_amax(const MatrixShard&, const void*, const float*, std::byte*, float*, CUstream_st*) {
  refuse();
}
void device_quantize_blocks(const MatrixShard&, const void*, std::byte*, float*, CUstream_st*) { refuse(); }

}  // namespace sparsecast
