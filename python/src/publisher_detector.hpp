// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memory.hpp"
#include "sparsecast/detector.hpp"

namespace sparsecast::python {

/// Detector of a publisher as Python requests it.
struct DetectorRequest {
  std::string name;  ///< "snapshot", "pinned", "fused_cast" or "mask".
  std::vector<Memory> tensors;
  std::optional<std::vector<std::optional<Memory>>> masters;
  std::uintptr_t stream = 0;
  double device_timeout = 60;

  std::vector<Memory> all() const;  ///< All memory that must be kept alive.
};

/// Makes the detector. Throws Error{kUsage} that names the tensor, or lists the valid detectors.
std::unique_ptr<Detector> make_detector(const std::shared_ptr<const TensorTable>& table,
                                        const DetectorRequest& request);

}  // namespace sparsecast::python
