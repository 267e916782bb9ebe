// SPDX-License-Identifier: Apache-2.0
#include "publisher_detector.hpp"

#include <fmt/format.h>

namespace sparsecast::python {
namespace {

/// Returns the masters of a fused cast: fp32, of the shapes of the table, where the tensors are; null for missing ones.
std::vector<std::byte*> masters_for(const TensorTable& table, const DetectorRequest& request) {
  if (!request.masters || request.masters->size() != table.size()) {
    throw Error(ErrorCode::kUsage, "the detector 'fused_cast' needs masters, parallel to the table");
  }
  std::vector<std::byte*> masters;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const std::optional<Memory>& master = (*request.masters)[i];
    if (!master) {
      masters.push_back(nullptr);
      continue;
    }
    const bool fits = master->dtype() == DType::kF32 && master->shape() == table[i].shape && master->contiguous() &&
                      master->device() == request.tensors[i].device();
    if (!fits) {
      throw Error(ErrorCode::kUsage, "it must be contiguous fp32, of the tensor's shape, and on the tensor's device",
                  fmt::format("master of '{}'", table[i].name));
    }
    masters.push_back(master->data());
  }
  return masters;
}

void require_contiguous(const TensorTable& table, const std::vector<Memory>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].contiguous()) continue;
    throw Error(ErrorCode::kUsage, "this detector needs it contiguous", fmt::format("tensor '{}'", table[i].name));
  }
}

std::vector<TensorBytes> spans_of(const std::vector<Memory>& tensors) {
  std::vector<TensorBytes> spans;
  for (const Memory& tensor : tensors) spans.emplace_back(tensor.data(), tensor.bytes());
  return spans;
}

std::unique_ptr<Detector> host_detector(const std::shared_ptr<const TensorTable>& table,
                                        const DetectorRequest& request) {
  require_contiguous(*table, request.tensors);
  const std::vector<TensorBytes> live = spans_of(request.tensors);
  const std::vector<ConstTensorBytes> read(live.begin(), live.end());
  if (request.name == "snapshot") return make_host_snapshot(*table, read);
  if (request.name == "mask") return std::make_unique<MaskDetector>(*table, read);
  if (request.name == "fused_cast") {
    std::vector<std::span<const float>> masters;
    const std::vector<std::byte*> data = masters_for(*table, request);
    for (std::size_t i = 0; i < data.size(); ++i) {
      masters.emplace_back(static_cast<const float*>(static_cast<const void*>(data[i])),
                           data[i] == nullptr ? 0 : (*table)[i].elements());
    }
    return make_fused_cast(*table, std::move(masters), live);
  }
  if (request.name == "pinned") throw Error(ErrorCode::kUsage, "the detector 'pinned' is for tensors on a CUDA device");
  throw Error(ErrorCode::kUsage,
              fmt::format("there is no detector '{}': snapshot, pinned, fused_cast, mask", request.name));
}

std::unique_ptr<DeviceDetector> device_detector(const std::shared_ptr<const TensorTable>& table,
                                                const DetectorRequest& request, int device) {
  require_contiguous(*table, request.tensors);
  const DeviceOptions options = device_options(device, request.stream, request.device_timeout);
  std::vector<void*> d_live;
  for (const Memory& tensor : request.tensors) d_live.push_back(tensor.data());
  const std::vector<const void*> d_read(d_live.begin(), d_live.end());
  if (request.name == "snapshot") return make_device_snapshot(table, d_read, options);
  if (request.name == "pinned") return make_pinned_snapshot(table, d_read, options);
  if (request.name == "fused_cast") {
    std::vector<const float*> d_masters;
    for (std::byte* data : masters_for(*table, request)) {
      d_masters.push_back(static_cast<const float*>(static_cast<const void*>(data)));
    }
    return make_device_fused_cast(table, std::move(d_masters), std::move(d_live), options);
  }
  throw Error(ErrorCode::kUsage,
              fmt::format("there is no detector '{}' for CUDA tensors: snapshot, pinned, fused_cast", request.name));
}

}  // namespace

std::vector<Memory> DetectorRequest::all() const {
  std::vector<Memory> kept = tensors;
  for (const std::optional<Memory>& master : masters.value_or(std::vector<std::optional<Memory>>{})) {
    if (master) kept.push_back(*master);
  }
  return kept;
}

MadeDetector make_detector(const std::shared_ptr<const TensorTable>& table, const DetectorRequest& request) {
  const Tensors tensors = tensors_for(*table, request.tensors, request.name == "fused_cast", "tensor");
  MadeDetector made;
  if (tensors.on_device) {
    made.device = device_detector(table, request, tensors.device);
  } else {
    made.host = host_detector(table, request);
    made.mask = dynamic_cast<MaskDetector*>(made.host.get());
  }
  return made;
}

}  // namespace sparsecast::python
