// SPDX-License-Identifier: Apache-2.0
#include "endpoint/publisher_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "memory/encoder.hpp"
#include "memory/memory_backend.hpp"

namespace sparsecast {

namespace {

/// Returns all records of a delta as one delta file, for compose.
Bytes as_file(const TensorTable& table, const Delta& delta) {
  Bytes file = delta.header;
  const Bytes table_record = pack_table(table, delta.info.delta_id);
  file.insert(file.end(), table_record.begin(), table_record.end());
  for (const Bytes& frame : delta.frames) file.insert(file.end(), frame.begin(), frame.end());
  file.insert(file.end(), delta.commit.begin(), delta.commit.end());
  return file;
}

/// Sink that collects the records of a delta in a Delta.
class DeltaCollector {
 public:
  explicit DeltaCollector(Delta& delta) : delta_(delta) {}

  void operator()(Bytes&& record) {
    switch (peek_record(record).kind) {
      case RecordKind::kHeader:
        delta_.info = parse_header(record);
        delta_.header = std::move(record);
        break;
      case RecordKind::kTable:
        break;  // Both ends of a stream share the table already.
      case RecordKind::kFrame:
        delta_.frames.push_back(std::move(record));
        break;
      case RecordKind::kCommit:
        delta_.result = parse_commit(record);
        delta_.commit = std::move(record);
        break;
    }
  }

 private:
  Delta& delta_;
};

Delta composed(const TensorTable& table, const Delta& first, const Delta& second, const EncodeOptions& options) {
  const Bytes first_file = as_file(table, first);
  const Bytes second_file = as_file(table, second);
  Delta joined;
  compose(DeltaFile::over(first_file, "aborted delta"), DeltaFile::over(second_file, "delta after it"), options,
          DeltaCollector(joined));
  return joined;
}

}  // namespace

PublisherState::PublisherState(JoinedTables tables, std::unique_ptr<Detector> detector, PublisherOptions options,
                               std::vector<StateDigest> base_digests)
    : tables_(std::move(tables)),
      detector_(std::move(detector)),
      options_(std::move(options)),
      version_(options_.version),
      last_attempt_(std::max(options_.version, options_.last_attempt)) {
  if (detector_ == nullptr) throw Error(ErrorCode::kUsage, "a publisher needs a detector");
  options_.encode = with_positions_decided(options_.encode, tables_.all(), detector_->has_all_old());
  backend_ = detector_->make_backend(tables_, options_.encode);
  digests_ = base_digests.empty() ? backend_->digests() : std::move(base_digests);
}

void PublisherState::complete(Delta& delta, const StateDigest& result) const {
  delta.result.result_digest = result;
  delta.commit = pack_commit(delta.result);
}

/// Fills encoded_ with deltas that start from `base` or, when it is null, from the committed version. The deltas are
/// not pending yet.
void PublisherState::encode(const Encoded* base, CUevent_st* weights_ready, const Published& published) {
  const std::size_t streams = tables_.streams();
  encoded_ = {};
  encoded_.deltas.resize(streams);
  encoded_.frames_here = !backend_->on_device();
  ++last_attempt_;
  std::vector<DeltaHeader> headers;
  for (std::size_t s = 0; s < streams; ++s) {
    Delta& delta = encoded_.deltas[s];
    delta.info = make_header(*tables_.table(s), options_.encode, options_.stream,
                             base != nullptr ? base->deltas[s].info.version : version_, last_attempt_,
                             base != nullptr ? base->deltas[s].result.result_digest : digests_[s]);
    delta.header = pack_header(delta.info);
    headers.push_back(delta.info);
  }
  const bool knows_old = backend_->abilities().knows_old;
  backend_->encode(headers, weights_ready, [&](std::size_t s, EncodedFrames&& made) {
    Delta& delta = encoded_.deltas[s];
    delta.result = made.commit;
    delta.frames = std::move(made.frames);
    if (!knows_old) return;
    StateDigest result = delta.info.base_digest;
    result += made.digest_change;
    complete(delta, result);
    if (published && encoded_.frames_here && base == nullptr) published(s, delta);
  });
  if (knows_old) return;
  const std::vector<StateDigest> results = backend_->digests();
  for (std::size_t s = 0; s < streams; ++s) {
    complete(encoded_.deltas[s], results[s]);
    if (published && encoded_.frames_here && base == nullptr) published(s, encoded_.deltas[s]);
  }
}

void PublisherState::take_frames(Encoded& encoded) {
  if (encoded.frames_here) return;
  std::vector<std::vector<Bytes>> frames = backend_->take_frames();
  for (std::size_t s = 0; s < frames.size(); ++s) encoded.deltas[s].frames = std::move(frames[s]);
  encoded.frames_here = true;
}

/// Composes the aborted deltas with the deltas in encoded_, which follow them.
void PublisherState::join_aborted() {
  take_frames(encoded_);
  for (std::size_t s = 0; s < encoded_.deltas.size(); ++s) {
    Delta& delta = encoded_.deltas[s];
    delta = composed(*tables_.table(s), aborted_->deltas[s], delta, options_.encode);
  }
}

/// Detects and encodes until the deltas are complete, whether their frames are on the host or on the device.
void PublisherState::start(CUevent_st* weights_ready, const Published& published) {
  if (pending_) {
    throw Error(ErrorCode::kUsage, fmt::format("version {} is still pending: commit or abort it first", last_attempt_));
  }
  if (broken_) {
    throw Error(ErrorCode::kDirty,
                "an earlier publish failed half-way; make a new publisher and seed it with an anchor");
  }
  backend_->require_usable();
  if (aborted_) take_frames(*aborted_);  // The next encode reuses the memory of their frames.
  // Detection refreshes the snapshot, or overwrites the old bits, as it proceeds.
  broken_ = backend_->abilities().refreshes_in_pass || backend_->abilities().consumes_changes;
  encode(aborted_ ? &*aborted_ : nullptr, weights_ready, published);
  if (aborted_) join_aborted();
}

const std::vector<Delta>& PublisherState::publish(CUevent_st* weights_ready, const Published& published) {
  start(weights_ready, published);
  const bool all_told = !backend_->on_device() && !aborted_;
  take_frames(encoded_);
  aborted_.reset();
  pending_ = true;
  broken_ = false;
  if (published && !all_told) {
    for (std::size_t s = 0; s < encoded_.deltas.size(); ++s) published(s, encoded_.deltas[s]);
  }
  return encoded_.deltas;
}

const std::vector<DeviceDelta>& PublisherState::publish_on_device(CUevent_st* weights_ready) {
  if (!backend_->on_device()) throw Error(ErrorCode::kUsage, "frames on a device need a device detector");
  start(weights_ready, nullptr);
  // Aborted deltas are joined on the host, so joined deltas have no frames on the device yet.
  std::vector<std::vector<DeviceRecord>> frames =
      encoded_.frames_here ? backend_->upload(encoded_.deltas) : backend_->frames_on_device();
  for (std::size_t s = 0; s < encoded_.deltas.size(); ++s) {
    const Delta& delta = encoded_.deltas[s];
    encoded_.on_device.push_back(
        {delta.info, delta.result, delta.header, std::move(frames[s]), delta.commit, backend_->cuda_stream()});
  }
  aborted_.reset();
  pending_ = true;
  broken_ = false;
  return encoded_.on_device;
}

/// Runs step(), and leaves the publisher broken if it throws.
template <class Step>
void PublisherState::guarded(const Step& step) {
  broken_ = true;
  step();
  broken_ = false;
}

PublisherState::Encoded PublisherState::take_pending(std::uint64_t asked, const char* verb) {
  if (!pending_ || last_attempt_ != asked) {
    throw Error(ErrorCode::kUsage, fmt::format("cannot {} version {}: {}", verb, asked,
                                               pending_ ? fmt::format("version {} is pending", last_attempt_)
                                                        : std::string("no version is pending")));
  }
  backend_->require_usable();
  pending_ = false;
  return std::exchange(encoded_, {});
}

void PublisherState::commit(std::uint64_t version) {
  const Encoded committed = take_pending(version, "commit");
  version_ = version;
  for (std::size_t s = 0; s < digests_.size(); ++s) digests_[s] = committed.deltas[s].result.result_digest;
  guarded([&] {
    if (backend_->abilities().keeps_snapshot && !backend_->abilities().refreshes_in_pass) {
      backend_->apply_to_snapshot(committed.deltas, Direction::kForward);
    }
    backend_->committed();
  });
}

void PublisherState::abort(std::uint64_t version) {
  Encoded aborted = take_pending(version, "abort");
  guarded([&] {
    if (backend_->abilities().refreshes_in_pass) backend_->apply_to_snapshot(aborted.deltas, Direction::kInverse);
    backend_->aborted();
  });
  if (backend_->abilities().consumes_changes) aborted_ = std::move(aborted);
}

Publisher::Publisher(std::shared_ptr<const TensorTable> table, std::vector<TensorRef> live, PublisherOptions options,
                     std::optional<StateDigest> base_digest) {
  auto detector = make_detector(table, std::move(live), std::exchange(options.detection, {}));
  *this = Publisher(std::move(table), std::move(detector), std::move(options), base_digest);
}

Publisher::Publisher(std::shared_ptr<const TensorTable> table, std::unique_ptr<Detector> detector,
                     PublisherOptions options, std::optional<StateDigest> base_digest)
    : state_(std::make_unique<PublisherState>(std::move(table), std::move(detector), std::move(options),
                                              base_digest ? std::vector{*base_digest} : std::vector<StateDigest>{})) {}

Publisher::~Publisher() = default;
Publisher::Publisher(Publisher&&) noexcept = default;
Publisher& Publisher::operator=(Publisher&&) noexcept = default;

const Delta& Publisher::publish(CUevent_st* weights_ready) { return state_->publish(weights_ready).front(); }
const DeviceDelta& Publisher::publish_on_device(CUevent_st* weights_ready) {
  return state_->publish_on_device(weights_ready).front();
}
void Publisher::commit(std::uint64_t version) { state_->commit(version); }
void Publisher::abort(std::uint64_t version) { state_->abort(version); }
std::uint64_t Publisher::version() const noexcept { return state_->version(); }
const StateDigest& Publisher::digest() const noexcept { return state_->digests().front(); }
bool Publisher::pending() const noexcept { return state_->pending(); }
bool Publisher::on_device() const noexcept { return state_->on_device(); }
Detector& Publisher::detector() noexcept { return state_->detector(); }
PublisherState& state_of(Publisher& publisher) noexcept { return *publisher.state_; }

}  // namespace sparsecast
