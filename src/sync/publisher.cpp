#include "sparsecast/publisher.hpp"

#include <fmt/format.h>

#include "codec/apply.hpp"
#include "sync/encoder.hpp"

namespace sparsecast {
namespace {

/// All records of a delta as one delta file, for compose.
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
  std::shared_ptr<const TensorTable> table;
  std::unique_ptr<Detector> detector;
  PublisherOptions options;
  std::uint64_t version = 0;       // Committed.
  std::uint64_t last_attempt = 0;  // Highest version number ever given to a delta.
  StateDigest digest;              // Of the committed version.
  std::optional<Delta> pending;
  std::optional<Delta> aborted;  // Consumed from the detector, but never committed: joined with the next.
  bool broken = false;           // An encode failed half-way: what the detector holds is not known any more.

  std::vector<ConstTensorBytes> current() const {
    std::vector<ConstTensorBytes> tensors;
    for (std::size_t t = 0; t < table->size(); ++t) tensors.push_back(detector->current(t));
    return tensors;
  }

  // A raw delta cannot be taken back from its own bytes, so its snapshot is refreshed at the commit instead.
  bool refresh_in_pass() const { return !detector->snapshot().empty() && options.encode.values != ValueCodec::kRaw; }

  Delta encode(std::uint64_t base_version, const StateDigest& base_digest) {
    Delta delta;
    delta.info = make_header(*table, options.encode, options.stream, base_version, ++last_attempt, base_digest);
    delta.header = pack_header(delta.info);
    const EncodedFrames encoded = encode_frames(*table, *detector, delta.info, options.encode, refresh_in_pass(), true,
                                                [&](Bytes&& record) { delta.frames.push_back(std::move(record)); });
    delta.result = encoded.commit;
    if (detector->knows_old()) {
      delta.result.result_digest = base_digest;
      delta.result.result_digest += encoded.digest_change;
    } else {
      delta.result.result_digest = sum(digest_tensors(*table, current(), options.encode.threads));
    }
    delta.commit = pack_commit(delta.result);
    return delta;
  }

  Delta join(const Delta& first, const Delta& second) const {
    const Bytes first_file = as_file(*table, first);
    const Bytes second_file = as_file(*table, second);
    Delta joined;
    compose(DeltaFile::over(first_file, "aborted delta"), DeltaFile::over(second_file, "delta after it"),
            options.encode, DeltaCollector(joined));
    return joined;
  }

  void apply_to_snapshot(const Delta& delta, Direction direction) {
    const std::span<const TensorBytes> snapshot = detector->snapshot();
    ApplyScratch scratch;
    for (const Bytes& record : delta.frames) {
      const FrameReader frame(record, delta.info, *table);
      for (const BlockRef& block : frame.blocks()) {
        const TensorSpec& spec = (*table)[block.tensor];
        ApplyTarget target;
        target.window = snapshot[block.tensor].data() + block.first_element * element_size(spec.dtype);
        target.dtype = spec.dtype;
        apply_block(block, target, direction, scratch);
      }
    }
  }

  void require_pending(std::uint64_t asked, const char* verb) const {
    if (!pending || pending->info.version != asked) {
      throw Error(ErrorCode::kUsage, fmt::format("cannot {} version {}: {}", verb, asked,
                                                 pending ? fmt::format("version {} is pending", pending->info.version)
                                                         : std::string("no version is pending")));
    }
  }
};

Publisher::Publisher(std::shared_ptr<const TensorTable> table, std::unique_ptr<Detector> detector,
                     PublisherOptions options, std::optional<StateDigest> base_digest)
    : state_(std::make_unique<State>()) {
  check_encode_options(options.encode, *detector);
  state_->table = std::move(table);
  state_->detector = std::move(detector);
  state_->options = options;
  state_->version = state_->last_attempt = options.version;
  state_->digest =
      base_digest ? *base_digest : sum(digest_tensors(*state_->table, state_->current(), options.encode.threads));
}

Publisher::~Publisher() = default;
Publisher::Publisher(Publisher&&) noexcept = default;
Publisher& Publisher::operator=(Publisher&&) noexcept = default;

const Delta& Publisher::publish() {
  State& state = *state_;
  if (state.pending) {
    throw Error(ErrorCode::kUsage,
                fmt::format("version {} is still pending: commit or abort it first", state.pending->info.version));
  }
  if (state.broken) {
    throw Error(ErrorCode::kDirty,
                "an earlier publish failed half-way; make a new publisher and seed it with an anchor");
  }
  // Detection refreshes the snapshot, or uses the old bits up, as it goes.
  state.broken = state.refresh_in_pass() || state.detector->consumes_changes();
  if (state.aborted) {
    const Delta next = state.encode(state.aborted->info.version, state.aborted->result.result_digest);
    state.pending = state.join(*state.aborted, next);
    state.aborted.reset();
  } else {
    state.pending = state.encode(state.version, state.digest);
  }
  state.broken = false;
  return *state.pending;
}

void Publisher::commit(std::uint64_t version) {
  State& state = *state_;
  state.require_pending(version, "commit");
  if (!state.detector->snapshot().empty() && !state.refresh_in_pass()) {
    state.apply_to_snapshot(*state.pending, Direction::kForward);
  }
  state.detector->committed();
  state.version = version;
  state.digest = state.pending->result.result_digest;
  state.pending.reset();
}

void Publisher::abort(std::uint64_t version) {
  State& state = *state_;
  state.require_pending(version, "abort");
  if (state.refresh_in_pass()) {
    state.apply_to_snapshot(*state.pending, Direction::kInverse);
  } else if (state.detector->consumes_changes()) {
    state.aborted = std::move(state.pending);
  }
  state.detector->aborted();
  state.pending.reset();
}

std::uint64_t Publisher::version() const noexcept { return state_->version; }
const StateDigest& Publisher::digest() const noexcept { return state_->digest; }
bool Publisher::pending() const noexcept { return state_->pending.has_value(); }
Detector& Publisher::detector() noexcept { return *state_->detector; }

}  // namespace sparsecast
