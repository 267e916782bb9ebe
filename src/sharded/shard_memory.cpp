// SPDX-License-Identifier: Apache-2.0
#include "sharded/shard_memory.hpp"

#include <fmt/format.h>

#include "core/tensor_view.hpp"
#include "layout/local_tensors.hpp"

namespace sparsecast {

std::uint64_t ShardMemory::wire_bytes(std::size_t local) const {
  return local_[local].bytes() / element_size(local_[local].dtype) * element_size(dtypes_[local]);
}

std::unique_ptr<PublisherState> ShardMemory::make_publisher(JoinedTables tables, std::vector<TensorRef> live,
                                                            std::vector<TensorRef> held,
                                                            const PublisherOptions& options) const {
  DetectorOptions detecting;
  detecting.held = std::move(held);
  auto detector = memory_->make_detector(tables.shared(), std::move(live), std::move(detecting));
  return std::make_unique<PublisherState>(std::move(tables), std::move(detector), options);
}

std::unique_ptr<SubscriberState> ShardMemory::make_subscriber(const JoinedTables& tables, std::vector<TensorRef> live,
                                                              const SubscriberOptions& options) const {
  return std::make_unique<SubscriberState>(tables, std::move(live), options, *memory_);
}

std::shared_ptr<ShardMemory> make_shard_memory(const Layout& layout, std::size_t rank, std::vector<TensorRef> local,
                                               bool masters, const DeviceOptions& device, bool pinned_snapshot) {
  const std::vector<LocalTensor>& tensors = local_tensors(layout, rank, local.size());
  int place = kHostMemory;
  std::vector<DType> dtypes;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const LocalTensor& tensor = tensors[t];
    const std::string where = fmt::format("rank {}: local tensor '{}'", rank, tensor.name);
    const auto refuse = [&](const std::string& why) { throw Error(ErrorCode::kUsage, why, where); };
    const bool master = is_master(tensor.dtype, local[t].dtype, where);
    if (master && !masters) refuse("F32 given for BF16: an engine's tensors are of its layout's dtypes");
    if (local[t].elements() != tensor.elements) {
      refuse(fmt::format("{} elements, where the layout says {}", local[t].elements(), tensor.elements));
    }
    if (!local[t].contiguous()) refuse("it is not contiguous");
    if (t == 0) place = local[t].device;
    if (local[t].device != place)
      refuse("it is not where the first local tensor is: all are on one device, or on the host");
    if (tensor.elements != 0 && local[t].data == nullptr) refuse("its pointer is null");
    if (place != kHostMemory && reinterpret_cast<std::uintptr_t>(local[t].data) % element_size(local[t].dtype) != 0) {
      refuse("its pointer is not aligned to its elements");
    }
    dtypes.push_back(tensor.dtype);
  }
  // cudaStreamPerThread. CUDA's headers define it as a cast, which cannot be a constant expression.
  if (place != kHostMemory && device.cuda_stream == reinterpret_cast<CUstream_st*>(std::uintptr_t{2})) {
    throw Error(ErrorCode::kUsage, "cudaStreamPerThread is another stream on each of the threads that a sync has",
                fmt::format("rank {}: DeviceOptions::stream", rank));
  }
  try {
    return std::make_shared<ShardMemory>(std::move(local), std::move(dtypes),
                                         memory_at(place, device, pinned_snapshot));
  } catch (const Error& error) {
    throw error.within(fmt::format("rank {}", rank));
  }
}

}  // namespace sparsecast
