// SPDX-License-Identifier: Apache-2.0
#include "publisher_detector.hpp"

#include <fmt/format.h>

#include "memory/memory_backend.hpp"

namespace sparsecast::python {
namespace {

/// Returns the masters of a fused cast, parallel to the table; a tensor without a master gets a reference without data.
/// Throws Error{kUsage} unless each master is contiguous fp32, of the tensor's shape and on its device.
std::vector<TensorRef> masters_for(const TensorTable& table, const DetectorRequest& request) {
  if (!request.masters || request.masters->size() != table.size()) {
    throw Error(ErrorCode::kUsage, "the detector 'fused_cast' needs masters, parallel to the table");
  }
  std::vector<TensorRef> masters;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const std::optional<Memory>& master = (*request.masters)[i];
    if (!master) {
      masters.push_back(ref_to(table[i], nullptr, request.tensors[i].device()));
      continue;
    }
    const bool fits = master->dtype() == DType::kF32 && master->shape() == table[i].shape && master->contiguous() &&
                      master->device() == request.tensors[i].device();
    if (!fits) {
      throw Error(ErrorCode::kUsage, "it must be contiguous fp32, of the tensor's shape, and on the tensor's device",
                  fmt::format("master of '{}'", table[i].name));
    }
    masters.push_back(master->ref(DType::kF32));
  }
  return masters;
}

void require_contiguous(const TensorTable& table, const std::vector<Memory>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].contiguous()) continue;
    throw Error(ErrorCode::kUsage, "this detector needs it contiguous", fmt::format("tensor '{}'", table[i].name));
  }
}

}  // namespace

std::vector<Memory> DetectorRequest::all() const {
  std::vector<Memory> kept = tensors;
  for (const std::optional<Memory>& master : masters.value_or(std::vector<std::optional<Memory>>{})) {
    if (master) kept.push_back(*master);
  }
  return kept;
}

std::unique_ptr<Detector> make_detector(const std::shared_ptr<const TensorTable>& table,
                                        const DetectorRequest& request) {
  const bool fused = request.name == "fused_cast";
  const bool mask = request.name == "mask";
  const bool pinned = request.name == "pinned";
  std::vector<TensorRef> tensors = tensors_for(*table, request.tensors, fused, "tensor");
  require_contiguous(*table, request.tensors);
  const int device = device_of(tensors);
  const bool on_host = device == kHostMemory;
  if (pinned && on_host) throw Error(ErrorCode::kUsage, "the detector 'pinned' is for tensors on a CUDA device");
  if (!fused && !pinned && request.name != "snapshot" && !(mask && on_host)) {
    throw Error(ErrorCode::kUsage,
                on_host ? fmt::format("there is no detector '{}': snapshot, pinned, fused_cast, mask", request.name)
                        : fmt::format("there is no detector '{}' for CUDA tensors: snapshot, pinned, fused_cast",
                                      request.name));
  }
  DetectorOptions options;
  options.pinned = pinned;
  if (!on_host) options.device = device_options(device, request.stream, request.device_timeout);
  if (mask) options.by = Detection::kMask;
  if (fused) {
    options.by = Detection::kFusedCast;
    options.held = std::exchange(tensors, masters_for(*table, request));
  }
  return sparsecast::make_detector(table, std::move(tensors), std::move(options));
}

}  // namespace sparsecast::python
