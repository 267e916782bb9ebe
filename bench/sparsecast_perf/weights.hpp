// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "sparsecast_perf/machine.hpp"
#include "sparsecast_perf/weight_source.hpp"
#include "sparsecast_perf/wire.hpp"

namespace sparsecast::perf {

/// The weights of one rank where they lie, and this rank's end of the sync. The publisher has the source's weights,
/// receivers live ones that only syncs change; everybody has a dense buffer that the plain broadcast fills.
class Weights {
 public:
  virtual ~Weights() = default;

  /// Publisher, after a step of the source: brings the weights, or the fp32 masters, to where the detector looks.
  virtual void take_step() = 0;
  /// Publisher, after the sync: the source's weights, which receivers must hold now, into the dense buffer.
  virtual void fill_dense() = 0;
  virtual void broadcast_dense(Deadline deadline) = 0;
  /// The dense buffer holds the first weights: receivers take them for live, and the ends of the sync are made.
  virtual void open() = 0;
  virtual SyncReport sync(std::chrono::milliseconds timeout) = 0;
  /// Receivers: elements whose live bits differ from the dense buffer's, of all elements. Publisher: 0.
  virtual std::uint64_t count_wrong() = 0;

  /// Whether the source has to cast its masters, or only to move them.
  virtual bool wants_cast() const noexcept = 0;
  /// "host snapshot": for the table's head.
  virtual const char* detector() const noexcept = 0;
};

/// What an implementation needs. All of it outlives the weights.
struct WeightsSetting {
  const Options& options;
  Wire& wire;
  std::shared_ptr<const TensorTable> table;
  WeightSource* source = nullptr;  ///< On the publisher; null elsewhere.
};

/// In the memory of the host.
std::unique_ptr<Weights> make_host_weights(const WeightsSetting& setting);
/// In the memory of CUDA device `device`, in one allocation; the plain broadcast as well, where the wire can.
std::unique_ptr<Weights> make_device_weights(const WeightsSetting& setting, int device);

}  // namespace sparsecast::perf
