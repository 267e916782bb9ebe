// Publisher and Subscriber of programs without device code: what would need a device throws.

#include "sparsecast/error.hpp"
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

std::unique_ptr<PublisherBackend> make_device_publisher_backend(const TensorTable&, DeviceDetector&,
                                                                const EncodeOptions&) {
  refuse();
}
std::unique_ptr<SubscriberBackend> make_device_subscriber_backend(const TensorTable&, std::vector<DeviceTensor>,
                                                                  const DeviceOptions&) {
  refuse();
}

}  // namespace sparsecast
