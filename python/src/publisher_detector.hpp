// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memory.hpp"
#include "sparsecast/detector.hpp"

namespace sparsecast::python {

/// Arguments with which Python asks for the detector of a publisher.
struct DetectorRequest {
  std::string name;                                           ///< "snapshot", "pinned", "fused_cast" or "mask".
  std::vector<Memory> tensors;                                ///< Tensors to publish, parallel to the table.
  std::optional<std::vector<std::optional<Memory>>> masters;  ///< fp32 masters of the tensors, for "fused_cast".
  std::uintptr_t stream = 0;   ///< CUDA stream of the caller; 0: a stream that the detector makes.
  double device_timeout = 60;  ///< Deadline of waits for the device, in seconds.

  std::vector<Memory> all() const;  ///< Memory that must live as long as the detector: tensors and masters.
};

/// Returns the detector for which `request` asks. Throws Error{kUsage} that names a tensor or master that does not fit
/// the table, or lists the valid detectors.
std::unique_ptr<Detector> make_detector(const std::shared_ptr<const TensorTable>& table,
                                        const DetectorRequest& request);

}  // namespace sparsecast::python
