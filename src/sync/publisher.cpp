// SPDX-License-Identifier: Apache-2.0

// The publisher's rules, the same wherever the weights are; what depends on that is behind PublisherBackend.

#include <fmt/format.h>

#include <algorithm>

#include "sparsecast/publisher.hpp"
#include "sync/publisher_backend.hpp"

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

/// Sorts the records of a sink into a Delta.
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

}  // namespace

struct Publisher::State {
  State(std::shared_ptr<const TensorTable> initial_table, const PublisherOptions& initial_options)
      : table(std::move(initial_table)),
        options(initial_options),
        version(options.version),
        last_attempt(std::max(options.version, options.last_attempt)) {}

  std::shared_ptr<const TensorTable> table;
  std::unique_ptr<Detector> detector;  // One of the two.
  std::unique_ptr<DeviceDetector> device_detector;
  std::unique_ptr<PublisherBackend> backend;
  PublisherOptions options;
  std::uint64_t version;       // Committed.
  std::uint64_t last_attempt;  // Highest version number ever given to a delta.
  StateDigest digest;          // Of the committed version.

  /// A delta whose frames are here, on the device, or both.
  struct Encoded {
    Delta delta;
    bool frames_taken = false;
    DeviceDelta on_device;
  };
  std::optional<Encoded> pending;
  std::optional<Encoded> aborted;  // Consumed from the detector, but never committed: joined with the next.
  bool broken = false;             // A step failed half-way: what the detector holds is not known any more.

  void set_base(const std::optional<StateDigest>& given) { digest = given ? *given : backend->digest(); }

  Encoded encode(std::uint64_t base_version, const StateDigest& base_digest, CUevent_st* weights_ready) {
    Encoded out;
    Delta& delta = out.delta;
    delta.info = make_header(*table, options.encode, options.stream, base_version, ++last_attempt, base_digest);
    delta.header = pack_header(delta.info);
    const EncodedFrames encoded = backend->encode(delta.info, weights_ready);
    delta.result = encoded.commit;
    if (backend->abilities().knows_old) {
      delta.result.result_digest = base_digest;
      delta.result.result_digest += encoded.digest_change;
    } else {
      delta.result.result_digest = backend->digest();
    }
    delta.commit = pack_commit(delta.result);
    return out;
  }

  void take_frames(Encoded& encoded) {
    if (encoded.frames_taken) return;
    encoded.delta.frames = backend->take_frames();
    encoded.frames_taken = true;
  }

  Encoded join(const Delta& first, const Delta& second) const {
    const Bytes first_file = as_file(*table, first);
    const Bytes second_file = as_file(*table, second);
    Encoded joined;
    compose(DeltaFile::over(first_file, "aborted delta"), DeltaFile::over(second_file, "delta after it"),
            options.encode, DeltaCollector(joined.delta));
    joined.frames_taken = true;
    return joined;
  }

  /// Detects, encodes, and lets `deliver` bring the frames to where they are wanted.
  template <class Deliver>
  void publish(CUevent_st* weights_ready, const Deliver& deliver) {
    if (pending) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("version {} is still pending: commit or abort it first", pending->delta.info.version));
    }
    if (broken) {
      throw Error(ErrorCode::kDirty,
                  "an earlier publish failed half-way; make a new publisher and seed it with an anchor");
    }
    if (aborted) take_frames(*aborted);  // The next encode needs their place.
    // Detection refreshes the snapshot, or uses the old bits up, as it goes.
    broken = backend->abilities().refreshes_in_pass || backend->abilities().consumes_changes;
    Encoded next;
    if (aborted) {
      next = encode(aborted->delta.info.version, aborted->delta.result.result_digest, weights_ready);
      take_frames(next);
      next = join(aborted->delta, next.delta);
    } else {
      next = encode(version, digest, weights_ready);
    }
    deliver(next);
    aborted.reset();
    pending = std::move(next);
    broken = false;
  }

  /// Leaves the publisher broken if `step` throws.
  template <class Step>
  void guarded(const Step& step) {
    broken = true;
    step();
    broken = false;
  }

  Encoded take_pending(std::uint64_t asked, const char* verb) {
    if (!pending || pending->delta.info.version != asked) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("cannot {} version {}: {}", verb, asked,
                              pending ? fmt::format("version {} is pending", pending->delta.info.version)
                                      : std::string("no version is pending")));
    }
    Encoded taken = std::move(*pending);
    pending.reset();
    return taken;
  }
};

Publisher::Publisher(std::shared_ptr<const TensorTable> table, std::unique_ptr<Detector> detector,
                     PublisherOptions options, std::optional<StateDigest> base_digest)
    : state_(std::make_unique<State>(std::move(table), options)) {
  state_->backend = make_host_publisher_backend(*state_->table, *detector, options.encode);
  state_->detector = std::move(detector);
  state_->set_base(base_digest);
}

Publisher::Publisher(std::shared_ptr<const TensorTable> table, std::unique_ptr<DeviceDetector> detector,
                     PublisherOptions options, std::optional<StateDigest> base_digest)
    : state_(std::make_unique<State>(std::move(table), options)) {
  state_->backend = make_device_publisher_backend(*state_->table, *detector, options.encode);
  state_->device_detector = std::move(detector);
  state_->set_base(base_digest);
}

Publisher::~Publisher() = default;
Publisher::Publisher(Publisher&&) noexcept = default;
Publisher& Publisher::operator=(Publisher&&) noexcept = default;

const Delta& Publisher::publish(CUevent_st* weights_ready) {
  State& state = *state_;
  state.publish(weights_ready, [&](State::Encoded& encoded) { state.take_frames(encoded); });
  return state.pending->delta;
}

const DeviceDelta& Publisher::publish_on_device(CUevent_st* weights_ready) {
  State& state = *state_;
  if (!state.backend->on_device()) throw Error(ErrorCode::kUsage, "frames on a device need a device detector");
  state.publish(weights_ready, [&](State::Encoded& encoded) {
    const Delta& delta = encoded.delta;
    // Aborted deltas are joined on the host, so a joined delta has no device frames.
    encoded.on_device = {
        delta.info,   delta.result,
        delta.header, encoded.frames_taken ? state.backend->upload(delta.frames) : state.backend->frames_on_device(),
        delta.commit, state.backend->stream()};
  });
  return state.pending->on_device;
}

void Publisher::commit(std::uint64_t version) {
  State& state = *state_;
  const State::Encoded committed = state.take_pending(version, "commit");
  state.version = version;
  state.digest = committed.delta.result.result_digest;
  state.guarded([&] {
    if (state.backend->abilities().keeps_snapshot && !state.backend->abilities().refreshes_in_pass) {
      state.backend->apply_to_snapshot(committed.delta, Direction::kForward);
    }
    state.backend->committed();
  });
}

void Publisher::abort(std::uint64_t version) {
  State& state = *state_;
  State::Encoded aborted = state.take_pending(version, "abort");
  state.guarded([&] {
    if (state.backend->abilities().refreshes_in_pass)
      state.backend->apply_to_snapshot(aborted.delta, Direction::kInverse);
    state.backend->aborted();
  });
  if (state.backend->abilities().consumes_changes) state.aborted = std::move(aborted);
}

std::uint64_t Publisher::version() const noexcept { return state_->version; }
const StateDigest& Publisher::digest() const noexcept { return state_->digest; }
bool Publisher::pending() const noexcept { return state_->pending.has_value(); }
Detector* Publisher::detector() noexcept { return state_->detector.get(); }
DeviceDetector* Publisher::device_detector() noexcept { return state_->device_detector.get(); }

namespace {

class HostPublisherBackend final : public PublisherBackend {
 public:
  HostPublisherBackend(const TensorTable& table, Detector& detector, const EncodeOptions& options)
      : table_(table), detector_(detector), options_(options) {
    check_encode_options(options, detector.knows_old());
  }

  Abilities abilities() const noexcept override {
    const bool keeps_snapshot = !detector_.snapshot().empty();
    return {detector_.knows_old(), keeps_snapshot, detector_.consumes_changes(),
            keeps_snapshot && options_.values != ValueCodec::kRaw};
  }

  StateDigest digest() override {
    // The live weights may have moved on from what receivers hold, which a snapshot knows.
    std::vector<ConstHostTensor> tensors;
    for (const HostTensor& tensor : detector_.snapshot()) tensors.push_back({tensor.data, tensor.strides});
    for (std::size_t t = tensors.size(); t < table_.size(); ++t) tensors.push_back(detector_.current(t));
    return sum(digest_tensors(table_, tensors, options_.threads));
  }

  EncodedFrames encode(const DeltaHeader& header, CUevent_st* weights_ready) override {
    if (weights_ready != nullptr) throw Error(ErrorCode::kUsage, "an event to wait for needs a device detector");
    frames_.clear();
    return encode_frames(table_, detector_, header, options_, abilities().refreshes_in_pass, true,
                         [this](Bytes&& record) { frames_.push_back(std::move(record)); });
  }
  std::vector<Bytes> take_frames() override { return std::move(frames_); }

  void apply_to_snapshot(const Delta& delta, Direction direction) override {
    const std::span<const HostTensor> tensors = detector_.snapshot();
    const auto snapshot = place_tensors(table_, std::vector<HostTensor>(tensors.begin(), tensors.end()), "snapshot");
    ApplyScratch scratch;
    for (const Bytes& record : delta.frames) {
      const FrameReader frame(record, delta.info, table_);
      for (const BlockRef& block : frame.blocks()) {
        const auto& place = snapshot[block.tensor];
        const ApplyTarget target = target_in(place.data, place.view.get(), table_[block.tensor].dtype, block);
        apply_block(block, target, direction, scratch);
      }
    }
  }
  void committed() override { detector_.committed(); }
  void aborted() override { detector_.aborted(); }

 private:
  const TensorTable& table_;
  Detector& detector_;
  EncodeOptions options_;
  std::vector<Bytes> frames_;
};

}  // namespace

std::unique_ptr<PublisherBackend> make_host_publisher_backend(const TensorTable& table, Detector& detector,
                                                              const EncodeOptions& options) {
  return std::make_unique<HostPublisherBackend>(table, detector, options);
}

}  // namespace sparsecast
