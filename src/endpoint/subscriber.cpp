// SPDX-License-Identifier: Apache-2.0

// The subscriber of one stream.

#include "sparsecast/subscriber.hpp"

#include "endpoint/joined_subscriber.hpp"

namespace sparsecast {

struct Subscriber::State {
  JoinedSubscriber all;  ///< One stream.
};

Subscriber::Subscriber(std::shared_ptr<const TensorTable> table, std::vector<TensorRef> live, SubscriberOptions options,
                       const DeviceOptions& device)
    : state_(new State{JoinedSubscriber(std::move(table), std::move(live), options, device)}) {}

Subscriber::~Subscriber() = default;
Subscriber::Subscriber(Subscriber&&) noexcept = default;
Subscriber& Subscriber::operator=(Subscriber&&) noexcept = default;

void Subscriber::stage(ConstBytes record) {
  state_->all.stage(0, record);
  state_->all.verify();
}

void Subscriber::stage(const Delta& delta) {
  stage(delta.header);
  for (const Bytes& frame : delta.frames) stage(frame);
  stage(delta.commit);
}

void Subscriber::stage_frames(std::vector<DeviceRecord> frames, CUstream_st* stream) {
  state_->all.stage_frames({{0, std::move(frames)}}, stream);
  state_->all.verify();
}

std::byte* Subscriber::reserve_frames(std::uint64_t bytes) { return state_->all.reserve_frames(bytes); }
bool Subscriber::ready() const noexcept { return state_->all.ready(); }
void Subscriber::discard() noexcept { state_->all.discard(); }
ApplyReport Subscriber::apply(const ApplyOrder& order) { return state_->all.apply(order).front(); }
ApplyReport Subscriber::apply_nan_masked(const NanMaskedLoader& load, const ApplyOrder& order) {
  return state_->all.apply_nan_masked(load, order);
}
void Subscriber::undo_last() { state_->all.undo_last(); }
std::uint64_t Subscriber::audit_next() { return state_->all.audit_next(); }
void Subscriber::audit() { state_->all.audit(); }
void Subscriber::reset(std::uint64_t version, const StateDigest& expected) { state_->all.reset(version, {expected}); }
std::uint64_t Subscriber::version() const noexcept { return state_->all.version(); }
const StateDigest& Subscriber::digest() const noexcept { return state_->all.digest(0); }
bool Subscriber::dirty() const noexcept { return state_->all.dirty(); }
bool Subscriber::on_device() const noexcept { return state_->all.on_device(); }
JoinedSubscriber& Subscriber::joined() noexcept { return state_->all; }

}  // namespace sparsecast
