#include "sparsecast/error.hpp"
#include "sparsecast_perf/weights.hpp"

namespace sparsecast::perf {

std::unique_ptr<Weights> make_device_weights(const WeightsSetting&, int) {
  throw Error(ErrorCode::kUnsupported, "this build has no device backend");
}

}  // namespace sparsecast::perf
