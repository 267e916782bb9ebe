// SPDX-License-Identifier: Apache-2.0

// The publisher of one stream, and the factory of detectors.

#include "sparsecast/publisher.hpp"
#include "endpoint/joined_publisher.hpp"
#include "memory/memory_backend.hpp"

namespace sparsecast {

struct Publisher::State {
  JoinedPublisher all;  ///< One stream.
};

namespace {

std::vector<StateDigest> list_of(const std::optional<StateDigest>& digest) {
  return digest ? std::vector{*digest} : std::vector<StateDigest>{};
}

}  // namespace

Publisher::Publisher(std::shared_ptr<const TensorTable> table, std::unique_ptr<Detector> detector,
                     PublisherOptions options, std::optional<StateDigest> base_digest)
    : state_(new State{JoinedPublisher(std::move(table), std::move(detector), options, list_of(base_digest))}) {}

Publisher::~Publisher() = default;
Publisher::Publisher(Publisher&&) noexcept = default;
Publisher& Publisher::operator=(Publisher&&) noexcept = default;

const Delta& Publisher::publish(CUevent_st* weights_ready) { return state_->all.publish(weights_ready).front(); }
const DeviceDelta& Publisher::publish_on_device(CUevent_st* weights_ready) {
  return state_->all.publish_on_device(weights_ready).front();
}
void Publisher::commit(std::uint64_t version) { state_->all.commit(version); }
void Publisher::abort(std::uint64_t version) { state_->all.abort(version); }
std::uint64_t Publisher::version() const noexcept { return state_->all.version(); }
const StateDigest& Publisher::digest() const noexcept { return state_->all.digests().front(); }
bool Publisher::pending() const noexcept { return state_->all.pending(); }
bool Publisher::on_device() const noexcept { return state_->all.on_device(); }
Detector& Publisher::detector() noexcept { return state_->all.detector(); }
JoinedPublisher& Publisher::joined() noexcept { return state_->all; }

void Detector::mark(std::size_t, const std::uint64_t*, CUstream_st*) {
  throw Error(ErrorCode::kUsage, "only a detector by mask takes marks");
}

std::unique_ptr<Detector> make_detector(std::shared_ptr<const TensorTable> table, std::vector<TensorRef> live,
                                        DetectorOptions options) {
  const int device = place_of(*table, live, "live", options.device);
  if (!options.held.empty() && common_device(*table, options.held, "held") != device) {
    throw Error(ErrorCode::kUsage, "what receivers hold is not on the device of the live tensors");
  }
  const auto memory = memory_at(device, options.device);
  return memory->make_detector(std::move(table), std::move(live), std::move(options));
}

}  // namespace sparsecast
