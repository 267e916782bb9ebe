// SPDX-License-Identifier: Apache-2.0

// Device functions of a library that was built without CUDA: all of them throw Error{kUnsupported}.

#include "core/masked_copy.hpp"
#include "sharded/shard_memory.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/quantize.hpp"
#include "sync/publisher_backend.hpp"
#include "sync/subscriber_backend.hpp"

namespace sparsecast {

namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorCode::kUnsupported, "this build of the library has no device backend: it was made without CUDA");
}

}  // namespace

bool device_backend_available() noexcept { return false; }

// NOLINTBEGIN(performance-unnecessary-value-param): the signatures are those of the device backend.
std::unique_ptr<Detector> make_device_detector(std::shared_ptr<const TensorTable>, std::vector<TensorRef>,
                                               DetectorOptions) {
  refuse();
}
std::unique_ptr<PublisherBackend> make_device_publisher_backend(const JoinedTables&, Detector&, const EncodeOptions&) {
  refuse();
}
std::unique_ptr<SubscriberBackend> make_device_subscriber_backend(const JoinedTables&, std::vector<TensorRef>,
                                                                  const DeviceOptions&) {
  refuse();
}

void device_nan_fill(DType, void*, std::uint64_t, CUstream_st*) { refuse(); }
void device_masked_copy(const MaskedCopyLayout&, const void*, void*, CUstream_st*) { refuse(); }

void device_block_amax(const MatrixShard&, const void*, float*, CUstream_st*) { refuse(); }
void device_quantize_with_amax(const MatrixShard&, const void*, const float*, std::byte*, float*, CUstream_st*) {
  refuse();
}
void device_quantize_blocks(const MatrixShard&, const void*, std::byte*, float*, CUstream_st*) { refuse(); }

std::shared_ptr<ShardMemory> make_device_shard_memory(std::vector<TensorRef>, std::vector<DType>, const DeviceOptions&,
                                                      bool) {
  refuse();
}
// NOLINTEND(performance-unnecessary-value-param)

}  // namespace sparsecast
