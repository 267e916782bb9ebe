// SPDX-License-Identifier: Apache-2.0

// Device functions of a library that was built without CUDA: all of them throw Error{kUnsupported}.

#include "core/masked_copy.hpp"
#include "sharded/shard_memory.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/quantize.hpp"
#include "sync/publisher_backend.hpp"
#include "sync/subscriber_backend.hpp"

namespace sparsecast {

class DeviceDetector::Implementation {};

namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorCode::kUnsupported, "this build of the library has no device backend: it was made without CUDA");
}

}  // namespace

bool device_backend_available() noexcept { return false; }

DeviceDetector::DeviceDetector(std::unique_ptr<Implementation> implementation)
    : implementation_(std::move(implementation)) {}
DeviceDetector::~DeviceDetector() = default;

std::unique_ptr<DeviceDetector> make_device_snapshot(std::shared_ptr<const TensorTable>, std::vector<const void*>,
                                                     const DeviceOptions&) {
  refuse();
}
std::unique_ptr<DeviceDetector> make_device_snapshot_over(std::shared_ptr<const TensorTable>, std::vector<DeviceTensor>,
                                                          std::vector<DeviceTensor>, const DeviceOptions&) {
  refuse();
}
std::unique_ptr<DeviceDetector> make_device_cast_snapshot(std::shared_ptr<const TensorTable>,
                                                          std::vector<DeviceSourceTensor>, std::vector<DeviceTensor>,
                                                          const DeviceOptions&) {
  refuse();
}
std::unique_ptr<DeviceDetector> make_pinned_snapshot(std::shared_ptr<const TensorTable>, std::vector<const void*>,
                                                     const DeviceOptions&) {
  refuse();
}
std::unique_ptr<DeviceDetector> make_device_fused_cast(std::shared_ptr<const TensorTable>, std::vector<const float*>,
                                                       std::vector<void*>, const DeviceOptions&) {
  refuse();
}
DeviceMaskDetector::DeviceMaskDetector(std::shared_ptr<const TensorTable>, std::vector<const void*>,
                                       const DeviceOptions&)
    : DeviceDetector(nullptr) {
  refuse();
}
void DeviceMaskDetector::mark(std::size_t, const std::uint64_t*, CUstream_st*) { refuse(); }

std::unique_ptr<PublisherBackend> make_device_publisher_backend(const JoinedTables&, DeviceDetector&,
                                                                const EncodeOptions&) {
  refuse();
}
std::unique_ptr<SubscriberBackend> make_device_subscriber_backend(const JoinedTables&, std::vector<DeviceTensor>,
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

std::shared_ptr<ShardMemory> make_device_shard_memory(const Layout&, std::size_t, const std::vector<void*>&,
                                                      const DeviceOptions&, const std::vector<DType>&, bool) {
  refuse();
}

}  // namespace sparsecast
