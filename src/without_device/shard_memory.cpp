// Sharded syncs over device memory in a library that has no device backend.

#include "sharded/shard_memory.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

std::shared_ptr<ShardMemory> make_device_shard_memory(const Layout&, std::size_t, const std::vector<void*>&,
                                                      const DeviceOptions&, const std::vector<DType>&) {
  throw Error(ErrorCode::kUnsupported, "this build of the library has no device backend: it was made without CUDA");
}

}  // namespace sparsecast
