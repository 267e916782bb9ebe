#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memory.hpp"
#include "sparsecast/detector.hpp"

namespace sparsecast::python {

/// What a publisher is to detect with, as Python asks for it.
struct DetectorRequest {
  std::string name;  ///< "snapshot", "pinned", "fused_cast" or "mask".
  std::vector<Memory> tensors;
  std::optional<std::vector<std::optional<Memory>>> masters;
  std::uintptr_t stream = 0;
  double device_timeout = 60;

  std::vector<Memory> all() const;  ///< To be kept alive.
};

struct MadeDetector {
  std::unique_ptr<Detector> host;  ///< One of the two.
  std::unique_ptr<DeviceDetector> device;
  MaskDetector* mask = nullptr;  ///< `host`, when it is one.
};

/// Error{kUsage} that names the tensor, or lists the detectors there are.
MadeDetector make_detector(const std::shared_ptr<const TensorTable>& table, const DetectorRequest& request);

}  // namespace sparsecast::python
