// SPDX-License-Identifier: Apache-2.0

// Stage, verify, apply, verify. Everything that can be refused is refused while staging (delta_staging.cpp) or by the
// backend's verification, before the first byte of live state changes; the apply itself can then only fail the check of
// its digest, and is undone in that case.

#include "endpoint/subscriber_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/tensor_view.hpp"
#include "core/trace.hpp"
#include "memory/encoder.hpp"

namespace sparsecast {

SubscriberState::SubscriberState(JoinedTables tables, std::unique_ptr<SubscriberBackend> backend,
                                 const SubscriberOptions& options)
    : tables_(std::move(tables)), backend_(std::move(backend)), options_(options) {
  for (std::size_t s = 0; s < tables_.streams(); ++s) {
    const TensorTable& table = *tables_.table(s);
    held_.push_back({resolve_stream(options.stream, table), options.version, {}, options.allow_rollback});
    stagings_.emplace_back(table, s, *backend_);
  }
  set_digests(backend_->digests(0, tables_.all().size()));
}

SubscriberState::SubscriberState(const JoinedTables& tables, std::vector<TensorRef> live,
                                 const SubscriberOptions& options, const MemoryBackend& memory)
    : SubscriberState(tables, memory.make_subscriber(tables, std::move(live), options.threads), options) {}

// The memory is found before the tensors are moved: what stands before a call's arguments is evaluated first.
SubscriberState::SubscriberState(const JoinedTables& tables, std::vector<TensorRef> live,
                                 const SubscriberOptions& options, const DeviceOptions& device)
    : SubscriberState(tables,
                      memory_at(place_of(tables.all(), live, "live", device), device)
                          ->make_subscriber(tables, std::move(live), options.threads),
                      options) {}

void SubscriberState::set_digests(std::vector<StateDigest> of_tensors) {
  tensor_digests_ = std::move(of_tensors);
  const std::vector<StateDigest> sums = tables_.sums(tensor_digests_);
  for (std::size_t s = 0; s < held_.size(); ++s) held_[s].digest = sums[s];
}

void SubscriberState::require_clean() const {
  if (dirty_) throw Error(ErrorCode::kDirty, "the live state is known to be wrong; write an anchor and reset()");
}

void SubscriberState::require_ready(const ApplyOrder& order) const {
  require_clean();
  if (!backend_->on_device() && (order.after != nullptr || order.written != nullptr)) {
    throw Error(ErrorCode::kUsage, "events that order an apply need tensors on a device");
  }
  if (!ready()) throw Error(ErrorCode::kIncomplete, "the delta is not complete yet");
  backend_->require_usable();
}

void SubscriberState::forget() noexcept {
  for (DeltaStaging& staging : stagings_) staging.forget();
  verified_ = false;
}

void SubscriberState::begin(std::size_t stream, ConstBytes record) {
  const DeltaHeader header = stagings_[stream].check_header(record, held_[stream]);
  const bool anew = verified_ || stagings_[stream].begun() || std::ranges::none_of(stagings_, &DeltaStaging::begun);
  if (anew) {
    forget();
    backend_->begin();
  }
  stagings_[stream].begin(header, record.size());
  applied_.reset();
}

void SubscriberState::stage(std::size_t stream, ConstBytes record) {
  require_clean();
  const RecordPrefix prefix = peek_record(record);
  if (prefix.bytes != record.size()) {
    throw Error(ErrorCode::kCorrupt, fmt::format("a record of {} bytes came as {}", prefix.bytes, record.size()));
  }
  if (prefix.kind == RecordKind::kHeader) {
    begin(stream, record);
  } else {
    stagings_[stream].take(record);
  }
}

void SubscriberState::stage_frames(const std::vector<StreamRecords>& frames, CUstream_st* ready) {
  require_clean();
  if (!backend_->on_device()) throw Error(ErrorCode::kUsage, "frames on a device need tensors on a device");
  std::vector<bool> named(stagings_.size());
  for (const StreamRecords& records : frames) {
    if (records.stream >= named.size() || named[records.stream]) {
      throw Error(ErrorCode::kUsage, fmt::format("frames of stream {}, of {}, or twice", records.stream, named.size()));
    }
    named[records.stream] = true;
  }
  for (std::size_t s = 0; s < stagings_.size(); ++s) {
    if (named[s] || !stagings_[s].begun()) continue;
    throw Error(ErrorCode::kUsage, fmt::format("the frames of stream {} do not come with those of the others", s));
  }
  std::vector<std::uint64_t> bytes;
  for (const StreamRecords& records : frames) {
    stagings_[records.stream].check_on_device(records.frames);
    std::uint64_t& total = bytes.emplace_back(0);
    for (const DeviceRecord& frame : records.frames) total += frame.record_bytes;
  }
  const std::vector<FrameHeader> headers = backend_->add_on_device(frames, ready);
  std::span<const FrameHeader> rest(headers);
  for (std::size_t i = 0; i < frames.size(); ++i) {
    stagings_[frames[i].stream].take_on_device(rest.first(frames[i].frames.size()), bytes[i]);
    rest = rest.subspan(frames[i].frames.size());
  }
}

std::byte* SubscriberState::reserve_frames(std::uint64_t bytes, std::uint64_t foreign_bytes) {
  std::uint64_t most = 0;
  for (const DeltaStaging& staging : stagings_) most += staging.byte_limit();
  if (bytes > most) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("the delta is larger than {} bytes, more than its table allows", most));
  }
  discard();
  std::byte* const memory = backend_->reserve(bytes + foreign_bytes);
  applied_.reset();
  return memory;
}

bool SubscriberState::complete() const noexcept {
  return std::ranges::all_of(stagings_, [](const DeltaStaging& staging) { return staging.complete(); });
}

void SubscriberState::verify() {
  if (verified_ || !complete()) return;
  backend_->complete();
  verified_ = true;
}

void SubscriberState::discard() noexcept {
  forget();
  backend_->discard();
}

std::vector<CommitRecord> SubscriberState::release() {
  std::vector<CommitRecord> commits;
  for (DeltaStaging& staging : stagings_) commits.push_back(staging.release());
  verified_ = false;
  return commits;
}

std::string SubscriberState::mismatch(std::size_t stream, const CommitRecord& commit,
                                      const StateDigest& reached) const {
  const std::string which = tables_.streams() == 1 ? "" : fmt::format(" of stream {}", stream);
  return fmt::format("version {}{} came out with digest {}, not {}", commit.version, which, to_hex(reached.value),
                     to_hex(commit.result_digest.value));
}

std::vector<ApplyReport> SubscriberState::accept(const std::vector<CommitRecord>& commits) {
  std::vector<ApplyReport> reports;
  for (std::size_t s = 0; s < held_.size(); ++s) {
    held_[s].digest = commits[s].result_digest;
    held_[s].version = commits[s].version;
    reports.push_back({commits[s].version, commits[s].changed, held_[s].digest});
  }
  dirty_ = false;
  return reports;
}

bool SubscriberState::roll_back(const std::vector<StateDigest>& changes) {
  const std::vector<StateDigest> back = backend_->roll_back();
  for (std::size_t t = 0; t < changes.size(); ++t) {
    StateDigest left = changes[t];
    left += back[t];
    if (left != StateDigest{}) return false;
  }
  return true;
}

namespace {

TracePayload trace_of(const std::vector<CommitRecord>& commits, const TensorTable& table) {
  TracePayload payload;
  for (const CommitRecord& commit : commits) {
    payload.version = commit.version;
    payload.bytes += commit.frame_bytes;
    payload.changed += commit.changed;
  }
  payload.density = trace_density(payload.changed, table.elements());
  return payload;
}

}  // namespace

std::vector<ApplyReport> SubscriberState::apply(const ApplyOrder& order, bool promised) {
  require_ready(order);
  std::vector<CommitRecord> commits = release();
  const TraceRange<"apply"> range(trace_of(commits, tables_.all()));
  // Until the digest is verified, the state counts as dirty: an exception in between must not leave it marked clean.
  dirty_ = true;
  Applied applied{backend_->apply(order), version()};
  const std::vector<StateDigest> changes = tables_.sums(applied.changes);
  for (std::size_t s = 0; s < held_.size(); ++s) {
    StateDigest reached = held_[s].digest;
    reached += changes[s];
    if (!promised) commits[s].result_digest = reached;
    if (reached == commits[s].result_digest) continue;
    if (!roll_back(applied.changes)) {
      throw Error(ErrorCode::kDirty, "the result was wrong and could not be undone; an anchor is needed");
    }
    dirty_ = false;
    throw Error(ErrorCode::kDigestMismatch,
                fmt::format("{}; version {} stands as it was", mismatch(s, commits[s], reached), version()));
  }
  for (std::size_t t = 0; t < applied.changes.size(); ++t) tensor_digests_[t] += applied.changes[t];
  applied_ = std::move(applied);
  return accept(commits);
}

ApplyReport SubscriberState::apply_nan_masked(const NanMaskedLoader& load, const ApplyOrder& order) {
  require_ready(order);
  const SubscriberBackend::NanMasked prepared = backend_->prepare_nan_masked();
  const std::vector<CommitRecord> commits = release();
  const CommitRecord& commit = commits.front();
  const TraceRange<"apply"> range(trace_of(commits, tables_.all()));
  StateDigest expected = held_.front().digest;
  expected += prepared.change;
  if (expected != commit.result_digest) {
    backend_->discard();
    throw Error(ErrorCode::kDigestMismatch,
                fmt::format("{}; nothing was written, version {} stands", mismatch(0, commit, expected), version()));
  }
  dirty_ = true;
  backend_->load_nan_masked(prepared.tensors, load, order);
  backend_->discard();
  std::vector<StateDigest> found = tensor_digests_;
  for (std::size_t i = 0; i < prepared.tensors.size();) {
    // Reads adjacent tensors in one call: on a device each call waits.
    const std::size_t first = prepared.tensors[i];
    std::size_t count = 0;
    while (i < prepared.tensors.size() && prepared.tensors[i] == first + count) ++i, ++count;
    std::ranges::copy(backend_->digests(first, count), found.begin() + static_cast<std::ptrdiff_t>(first));
  }
  const StateDigest reached = sum(found);
  if (reached != commit.result_digest) {
    throw Error(ErrorCode::kDirty,
                fmt::format("{}: the loader left other bytes; an anchor is needed", mismatch(0, commit, reached)));
  }
  tensor_digests_ = std::move(found);
  return accept(commits).front();
}

void SubscriberState::undo_last() {
  require_clean();
  if (!applied_) throw Error(ErrorCode::kUsage, "there is no applied delta to roll back");
  backend_->require_usable();
  const TraceRange<"undo"> range({.version = version()});
  const Applied applied = std::move(*applied_);
  applied_.reset();
  dirty_ = true;
  if (!roll_back(applied.changes)) {
    throw Error(ErrorCode::kDirty, "the delta could not be rolled back; an anchor is needed");
  }
  for (std::size_t t = 0; t < applied.changes.size(); ++t) tensor_digests_[t] -= applied.changes[t];
  set_digests(std::move(tensor_digests_));
  for (HeldState& held : held_) held.version = applied.old_version;
  dirty_ = false;
}

void SubscriberState::audit(std::size_t first, std::size_t count) {
  if (count == 0) return;
  const TraceRange<"audit"> range({.version = version()});
  const std::vector<StateDigest> found = backend_->digests(first, count);
  for (std::size_t i = 0; i < count; ++i) {
    if (found[i] == tensor_digests_[first + i]) continue;
    dirty_ = true;
    throw Error(ErrorCode::kDirty,
                fmt::format("its bytes have changed without a delta since version {} or before", version()),
                fmt::format("tensor '{}'", tables_.all()[first + i].name));
  }
}

std::uint64_t SubscriberState::audit_next() {
  require_clean();
  const TensorTable& table = tables_.all();
  const std::size_t tensors = table.size();
  if (options_.audit_versions == 0 || tensors == 0) return 0;
  std::uint64_t slice = table.bytes() / options_.audit_versions + 1;
  if (options_.audit_time.count() != 0 && audit_speed_ != 0) {
    const double seconds = std::chrono::duration<double>(options_.audit_time).count();
    slice = std::min(slice, static_cast<std::uint64_t>(audit_speed_ * seconds) + 1);
  }
  audit_credit_ += slice;
  std::uint64_t read = 0;
  std::size_t count = 0;
  while (count < tensors) {
    const std::uint64_t bytes = table[(audit_cursor_ + count) % tensors].bytes();
    if (bytes > audit_credit_) break;
    audit_credit_ -= bytes;
    read += bytes;
    ++count;
  }
  const std::size_t first = audit_cursor_;
  const std::size_t before_end = std::min(count, tensors - first);
  audit_cursor_ = (first + count) % tensors;
  const auto start = std::chrono::steady_clock::now();
  audit(first, before_end);
  audit(0, count - before_end);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (read != 0 && took.count() > 0) audit_speed_ = static_cast<double>(read) / took.count();
  return read;
}

void SubscriberState::audit() {
  require_clean();
  audit(0, tables_.all().size());
}

void SubscriberState::reset(std::uint64_t version, const std::vector<StateDigest>& expected) {
  reset(version);
  for (std::size_t s = 0; s < held_.size(); ++s) {
    const StateDigest& found = held_[s].digest;
    if (found == expected[s]) continue;
    dirty_ = true;
    throw Error(ErrorCode::kDigestMismatch,
                fmt::format("the anchor has digest {}, not {}", to_hex(found.value), to_hex(expected[s].value)));
  }
}

void SubscriberState::reset(std::uint64_t version) {
  discard();
  applied_.reset();
  dirty_ = true;
  set_digests(backend_->digests(0, tables_.all().size()));
  for (HeldState& held : held_) held.version = version;
  dirty_ = false;
}

Subscriber::Subscriber(std::shared_ptr<const TensorTable> table, std::vector<TensorRef> live, SubscriberOptions options,
                       const DeviceOptions& device)
    : state_(std::make_unique<SubscriberState>(std::move(table), std::move(live), options, device)) {}

Subscriber::~Subscriber() = default;
Subscriber::Subscriber(Subscriber&&) noexcept = default;
Subscriber& Subscriber::operator=(Subscriber&&) noexcept = default;

void Subscriber::stage(ConstBytes record) {
  state_->stage(0, record);
  state_->verify();
}

void Subscriber::stage(const Delta& delta) {
  stage(delta.header);
  for (const Bytes& frame : delta.frames) stage(frame);
  stage(delta.commit);
}

void Subscriber::stage_frames(std::vector<DeviceRecord> frames, CUstream_st* stream) {
  state_->stage_frames({{0, std::move(frames)}}, stream);
  state_->verify();
}

std::byte* Subscriber::reserve_frames(std::uint64_t bytes) { return state_->reserve_frames(bytes); }
bool Subscriber::ready() const noexcept { return state_->ready(); }
void Subscriber::discard() noexcept { state_->discard(); }
ApplyReport Subscriber::apply(const ApplyOrder& order) { return state_->apply(order).front(); }
ApplyReport Subscriber::apply_nan_masked(const NanMaskedLoader& load, const ApplyOrder& order) {
  return state_->apply_nan_masked(load, order);
}
void Subscriber::undo_last() { state_->undo_last(); }
std::uint64_t Subscriber::audit_next() { return state_->audit_next(); }
void Subscriber::audit() { state_->audit(); }
void Subscriber::reset(std::uint64_t version, const StateDigest& expected) { state_->reset(version, {expected}); }
std::uint64_t Subscriber::version() const noexcept { return state_->version(); }
const StateDigest& Subscriber::digest() const noexcept { return state_->digest(0); }
bool Subscriber::dirty() const noexcept { return state_->dirty(); }
bool Subscriber::on_device() const noexcept { return state_->on_device(); }
SubscriberState& state_of(Subscriber& subscriber) noexcept { return *subscriber.state_; }

}  // namespace sparsecast
