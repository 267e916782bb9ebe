// SPDX-License-Identifier: Apache-2.0
#pragma once

// Detectors of contiguous tensors, from what tests have of them.

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "memory/memory_backend.hpp"
#include "sparsecast/detector.hpp"

namespace sparsecast::test {

/// Returns a pointer to a table that outlives it.
inline std::shared_ptr<const TensorTable> borrowed(const TensorTable& table) {
  return {std::shared_ptr<const TensorTable>(), &table};
}

inline std::unique_ptr<TileDetector> host_snapshot(const TensorTable& table, const std::vector<ConstBytes>& live) {
  return make_host_detector(borrowed(table), refs_to(table, live));
}

inline std::unique_ptr<TileDetector> host_snapshot_over(const TensorTable& table, std::vector<TensorRef> live,
                                                        std::vector<TensorRef> held) {
  DetectorOptions options;
  options.held = std::move(held);
  return make_host_detector(borrowed(table), std::move(live), std::move(options));
}

/// Returns references to fp32 masters of the table's tensors; a null pointer for one that does not change.
inline std::vector<TensorRef> master_refs(const TensorTable& table, const std::vector<const float*>& masters,
                                          int device = kHostMemory) {
  std::vector<TensorRef> refs;
  for (std::size_t t = 0; t < masters.size(); ++t) {
    refs.push_back(ref_to(table[t], masters[t], device));
    refs.back().dtype = DType::kF32;
  }
  return refs;
}

/// An empty span of masters means that the tensor does not change.
inline std::unique_ptr<TileDetector> host_fused_cast(const TensorTable& table,
                                                     const std::vector<std::span<const float>>& masters,
                                                     const std::vector<MutableBytes>& bf16) {
  std::vector<const float*> data;
  for (const std::span<const float> master : masters) data.push_back(master.empty() ? nullptr : master.data());
  DetectorOptions options;
  options.by = Detection::kFusedCast;
  options.held = refs_to(table, bf16);
  return make_host_detector(borrowed(table), master_refs(table, data), std::move(options));
}

inline std::unique_ptr<TileDetector> host_mask(const TensorTable& table, const std::vector<ConstBytes>& live) {
  DetectorOptions options;
  options.by = Detection::kMask;
  return make_host_detector(borrowed(table), refs_to(table, live), std::move(options));
}

/// Returns the options with an ordinal, which tells where the tensors of an empty table are.
inline DeviceOptions with_ordinal(DeviceOptions options) {
  if (options.device < 0) options.device = 0;
  return options;
}

/// Returns references to contiguous tensors on options.device, or the first device.
inline std::vector<TensorRef> device_refs(const TensorTable& table, const std::vector<const void*>& d_tensors,
                                          const DeviceOptions& options = {}) {
  std::vector<void*> writable;
  for (const void* const d_tensor : d_tensors) writable.push_back(const_cast<void*>(d_tensor));
  return refs_to(table, writable, options.device < 0 ? 0 : options.device);
}

inline std::unique_ptr<Detector> device_snapshot(const std::shared_ptr<const TensorTable>& table,
                                                 const std::vector<const void*>& d_live,
                                                 const DeviceOptions& device = {}, bool pinned = false) {
  DetectorOptions options;
  options.pinned = pinned;
  options.device = with_ordinal(device);
  return make_detector(table, device_refs(*table, d_live, device), std::move(options));
}

inline std::unique_ptr<Detector> pinned_snapshot(const std::shared_ptr<const TensorTable>& table,
                                                 const std::vector<const void*>& d_live,
                                                 const DeviceOptions& device = {}) {
  return device_snapshot(table, d_live, device, true);
}

inline std::unique_ptr<Detector> device_snapshot_over(const std::shared_ptr<const TensorTable>& table,
                                                      std::vector<TensorRef> live, std::vector<TensorRef> held,
                                                      const DeviceOptions& device = {}) {
  DetectorOptions options;
  options.held = std::move(held);
  options.device = with_ordinal(device);
  return make_detector(table, std::move(live), std::move(options));
}

inline std::unique_ptr<Detector> device_fused_cast(const std::shared_ptr<const TensorTable>& table,
                                                   const std::vector<const float*>& d_masters,
                                                   const std::vector<void*>& d_bf16, const DeviceOptions& device = {}) {
  const int ordinal = device.device < 0 ? 0 : device.device;
  DetectorOptions options;
  options.by = Detection::kFusedCast;
  options.held = refs_to(*table, d_bf16, ordinal);
  options.device = with_ordinal(device);
  return make_detector(table, master_refs(*table, d_masters, ordinal), std::move(options));
}

inline std::unique_ptr<Detector> device_mask(const std::shared_ptr<const TensorTable>& table,
                                             const std::vector<const void*>& d_live, const DeviceOptions& device = {}) {
  DetectorOptions options;
  options.by = Detection::kMask;
  options.device = with_ordinal(device);
  return make_detector(table, device_refs(*table, d_live, device), std::move(options));
}

}  // namespace sparsecast::test
