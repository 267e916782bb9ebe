#include "capi/buffer_memory.hpp"

namespace sparsecast::capi {

std::unique_ptr<BufferMemory> make_device_memory(std::shared_ptr<const TensorTable>, const std::vector<void*>&,
                                                 Communicator&) {
  throw Error(ErrorCode::kUnsupported,
              "this build of the library broadcasts host memory only: it has no device backend");
}

}  // namespace sparsecast::capi
