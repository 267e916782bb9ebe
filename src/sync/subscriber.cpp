// SPDX-License-Identifier: Apache-2.0

// Stage, verify, apply, verify. Everything that can be refused is refused while staging (delta_staging.cpp), before the
// first byte of live state changes; the apply that is left can only fail its proof, and is then undone.

#include "sparsecast/subscriber.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/tensor_view.hpp"
#include "core/trace.hpp"
#include "sync/delta_staging.hpp"
#include "sync/encoder.hpp"

namespace sparsecast {

struct Subscriber::State {
  State(std::shared_ptr<const TensorTable> initial_table, std::unique_ptr<SubscriberBackend> initial_backend,
        const SubscriberOptions& initial_options);

  std::shared_ptr<const TensorTable> table;
  std::unique_ptr<SubscriberBackend> backend;
  SubscriberOptions options;
  HeldState held;
  std::vector<StateDigest> tensor_digests;
  bool dirty = false;
  DeltaStaging staging;

  /// State needed to roll the last apply back, beside what the backend keeps.
  struct Applied {
    std::vector<StateDigest> changes;  ///< Change of each tensor's digest.
    std::uint64_t old_version = 0;
  };
  std::optional<Applied> applied;

  std::size_t audit_cursor = 0;
  std::uint64_t audit_credit = 0;

  void require_clean() const {
    if (dirty) throw Error(ErrorCode::kDirty, "the live state is known to be wrong; write an anchor and reset()");
  }
  void require_ready(const ApplyOrder& order) const {
    require_clean();
    if (!backend->on_device() && (order.after != nullptr || order.written != nullptr)) {
      throw Error(ErrorCode::kUsage, "events that order an apply need tensors on a device");
    }
    if (!staging.complete()) throw Error(ErrorCode::kIncomplete, "the delta is not complete yet");
  }
  std::string mismatch(const CommitRecord& commit, const StateDigest& reached) const {
    return fmt::format("version {} came out with digest {}, not {}", commit.version, to_hex(reached.value),
                       to_hex(commit.result_digest.value));
  }
  TracePayload trace_of(const CommitRecord& commit) const {
    return {commit.version, commit.frame_bytes, commit.changed, trace_density(commit.changed, table->elements())};
  }
  ApplyReport accept(const CommitRecord& commit) {
    held.digest = commit.result_digest;
    held.version = commit.version;
    dirty = false;
    return {commit.version, commit.changed, held.digest};
  }
  void audit(std::size_t first, std::size_t count);
};

Subscriber::State::State(std::shared_ptr<const TensorTable> initial_table,
                         std::unique_ptr<SubscriberBackend> initial_backend, const SubscriberOptions& initial_options)
    : table(std::move(initial_table)),
      backend(std::move(initial_backend)),
      options(initial_options),
      tensor_digests(backend->digests(0, table->size())),
      staging(*table, *backend) {
  held = {resolve_stream(options.stream, *table), options.version, sum(tensor_digests), options.allow_rollback};
}

void Subscriber::State::audit(std::size_t first, std::size_t count) {
  if (count == 0) return;
  const TraceRange<"audit"> range({.version = held.version});
  const std::vector<StateDigest> found = backend->digests(first, count);
  for (std::size_t i = 0; i < count; ++i) {
    if (found[i] == tensor_digests[first + i]) continue;
    dirty = true;
    throw Error(ErrorCode::kDirty,
                fmt::format("its bytes have changed without a delta since version {} or before", held.version),
                fmt::format("tensor '{}'", (*table)[first + i].name));
  }
}

Subscriber::Subscriber(std::shared_ptr<const TensorTable> table, std::vector<TensorBytes> live,
                       SubscriberOptions options)
    : Subscriber(table, host_tensors(*table, live, "live"), options) {}

Subscriber::Subscriber(std::shared_ptr<const TensorTable> table, std::vector<HostTensor> live,
                       SubscriberOptions options) {
  auto backend = make_host_subscriber_backend(*table, std::move(live), options.threads);
  state_ = std::make_unique<State>(std::move(table), std::move(backend), options);
}

Subscriber::Subscriber(std::shared_ptr<const TensorTable> table, std::vector<DeviceTensor> live,
                       SubscriberOptions options, const DeviceOptions& device) {
  auto backend = make_device_subscriber_backend(*table, std::move(live), device);
  state_ = std::make_unique<State>(std::move(table), std::move(backend), options);
}

Subscriber::~Subscriber() = default;
Subscriber::Subscriber(Subscriber&&) noexcept = default;
Subscriber& Subscriber::operator=(Subscriber&&) noexcept = default;

void Subscriber::stage(ConstBytes record) {
  state_->require_clean();
  if (state_->staging.take(record, state_->held)) state_->applied.reset();
}

void Subscriber::stage(const Delta& delta) {
  stage(delta.header);
  for (const Bytes& frame : delta.frames) stage(frame);
  stage(delta.commit);
}

void Subscriber::stage_frames(std::vector<DeviceRecord> frames, CUstream_st* stream) {
  state_->require_clean();
  state_->staging.take_on_device(std::move(frames), stream);
}

std::byte* Subscriber::reserve_frames(std::uint64_t bytes) {
  std::byte* const memory = state_->staging.reserve(bytes);
  state_->applied.reset();
  return memory;
}

bool Subscriber::ready() const noexcept { return state_->staging.complete(); }

void Subscriber::discard() noexcept { state_->staging.discard(); }

ApplyReport Subscriber::apply(const ApplyOrder& order) {
  State& state = *state_;
  state.require_ready(order);
  const CommitRecord commit = state.staging.release();
  const TraceRange<"apply"> range(state.trace_of(commit));
  // Until the proof is through, the state counts as dirty: an exception in between must not leave it looking clean.
  state.dirty = true;
  State::Applied applied{state.backend->apply(order), state.held.version};
  const StateDigest change = sum(applied.changes);
  StateDigest reached = state.held.digest;
  reached += change;
  if (reached != commit.result_digest) {
    StateDigest back = change;
    back += sum(state.backend->roll_back());
    if (back != StateDigest{}) {
      throw Error(ErrorCode::kDirty, "the result was wrong and could not be undone; an anchor is needed");
    }
    state.dirty = false;
    throw Error(ErrorCode::kDigestMismatch,
                fmt::format("{}; version {} stands as it was", state.mismatch(commit, reached), state.held.version));
  }
  for (std::size_t t = 0; t < applied.changes.size(); ++t) state.tensor_digests[t] += applied.changes[t];
  state.applied = std::move(applied);
  return state.accept(commit);
}

ApplyReport Subscriber::apply_nan_masked(const NanMaskedLoader& load, const ApplyOrder& order) {
  State& state = *state_;
  state.require_ready(order);
  const SubscriberBackend::NanMasked prepared = state.backend->prepare_nan_masked();
  const CommitRecord commit = state.staging.release();
  const TraceRange<"apply"> range(state.trace_of(commit));
  StateDigest expected = state.held.digest;
  expected += prepared.change;
  if (expected != commit.result_digest) {
    state.backend->discard();
    throw Error(ErrorCode::kDigestMismatch, fmt::format("{}; nothing was written, version {} stands",
                                                        state.mismatch(commit, expected), state.held.version));
  }
  state.dirty = true;
  state.backend->load_nan_masked(prepared.tensors, load, order);
  state.backend->discard();
  std::vector<StateDigest> found = state.tensor_digests;
  for (std::size_t i = 0; i < prepared.tensors.size();) {
    // Neighbours at once: on a device each call is a wait.
    const std::size_t first = prepared.tensors[i];
    std::size_t count = 0;
    while (i < prepared.tensors.size() && prepared.tensors[i] == first + count) ++i, ++count;
    std::ranges::copy(state.backend->digests(first, count), found.begin() + static_cast<std::ptrdiff_t>(first));
  }
  const StateDigest reached = sum(found);
  if (reached != commit.result_digest) {
    throw Error(ErrorCode::kDirty,
                fmt::format("{}: the loader left other bytes; an anchor is needed", state.mismatch(commit, reached)));
  }
  state.tensor_digests = std::move(found);
  return state.accept(commit);
}

void Subscriber::undo_last() {
  State& state = *state_;
  state.require_clean();
  if (!state.applied) throw Error(ErrorCode::kUsage, "there is no applied delta to roll back");
  const TraceRange<"undo"> range({.version = state.held.version});
  const State::Applied applied = std::move(*state.applied);
  state.applied.reset();
  state.dirty = true;
  StateDigest back = sum(applied.changes);
  back += sum(state.backend->roll_back());
  if (back != StateDigest{}) throw Error(ErrorCode::kDirty, "the delta could not be rolled back; an anchor is needed");
  for (std::size_t t = 0; t < applied.changes.size(); ++t) state.tensor_digests[t] -= applied.changes[t];
  state.held.digest = sum(state.tensor_digests);
  state.held.version = applied.old_version;
  state.dirty = false;
}

std::uint64_t Subscriber::audit_next() {
  State& state = *state_;
  state.require_clean();
  const std::size_t tensors = state.table->size();
  if (state.options.audit_versions == 0 || tensors == 0) return 0;
  state.audit_credit += state.table->bytes() / state.options.audit_versions + 1;
  std::uint64_t read = 0;
  std::size_t count = 0;
  while (count < tensors) {
    const std::uint64_t bytes = (*state.table)[(state.audit_cursor + count) % tensors].bytes();
    if (bytes > state.audit_credit) break;
    state.audit_credit -= bytes;
    read += bytes;
    ++count;
  }
  const std::size_t first = state.audit_cursor;
  const std::size_t before_end = std::min(count, tensors - first);
  state.audit_cursor = (first + count) % tensors;
  state.audit(first, before_end);
  state.audit(0, count - before_end);
  return read;
}

void Subscriber::audit() {
  state_->require_clean();
  state_->audit(0, state_->table->size());
}

void Subscriber::reset(std::uint64_t version, const StateDigest& expected) {
  State& state = *state_;
  state.staging.discard();
  state.applied.reset();
  state.dirty = true;
  std::vector<StateDigest> digests = state.backend->digests(0, state.table->size());
  const StateDigest found = sum(digests);
  if (found != expected) {
    throw Error(ErrorCode::kDigestMismatch,
                fmt::format("the anchor has digest {}, not {}", to_hex(found.value), to_hex(expected.value)));
  }
  state.tensor_digests = std::move(digests);
  state.held.digest = found;
  state.held.version = version;
  state.dirty = false;
}

std::uint64_t Subscriber::version() const noexcept { return state_->held.version; }
const StateDigest& Subscriber::digest() const noexcept { return state_->held.digest; }
bool Subscriber::dirty() const noexcept { return state_->dirty; }

}  // namespace sparsecast
