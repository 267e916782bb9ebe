// Stage, verify, apply, prove. Everything that can be refused is refused while staging, before the first byte of
// live state changes; the apply that is left can only fail its proof, and is then undone.

#include "sparsecast/subscriber.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "codec/apply.hpp"
#include "core/parallel.hpp"
#include "sync/encoder.hpp"

namespace sparsecast {
namespace {

struct StagedFrame {
  StagedFrame(ConstBytes record, const DeltaHeader& header, const TensorTable& table)
      : bytes(record.begin(), record.end()), reader(bytes, header, table) {}
  StagedFrame(const StagedFrame&) = delete;
  StagedFrame& operator=(const StagedFrame&) = delete;

  Bytes bytes;
  FrameReader reader;
};

/// A delta on its way in: what has arrived so far.
struct Staging {
  DeltaHeader header;
  std::map<std::uint32_t, std::unique_ptr<StagedFrame>> frames;
  std::optional<CommitRecord> commit;
  std::uint64_t bytes = 0;  ///< Records and decompressed bodies.
  bool complete = false;
};

/// One task of an apply: consecutive blocks of one frame.
struct BlockRun {
  const FrameReader* frame = nullptr;
  std::size_t begin = 0;
  std::size_t end = 0;
  Bytes replaced;  ///< Raw values only: the bits that the apply overwrote.
};

constexpr std::size_t kBlocksPerRun = 64;

}  // namespace

struct Subscriber::State {
  std::shared_ptr<const TensorTable> table;
  std::vector<TensorBytes> live;
  SubscriberOptions options;
  std::uint64_t version = 0;
  StateDigest digest;
  std::vector<StateDigest> tensor_digests;
  bool dirty = false;
  std::optional<Staging> staging;

  // What the last apply needs to be taken back.
  struct Applied {
    Staging delta;
    std::vector<BlockRun> runs;
    std::vector<StateDigest> changes;  ///< By tensor.
    std::uint64_t old_version = 0;
  };
  std::optional<Applied> applied;

  std::uint64_t byte_limit = 0;
  std::uint64_t block_limit = 0;
  std::size_t audit_cursor = 0;
  std::uint64_t audit_credit = 0;

  void require_clean() const {
    if (dirty) throw Error(ErrorCode::kDirty, "the live state is known to be wrong; write an anchor and reset()");
  }

  std::vector<ConstTensorBytes> tensors() const { return {live.begin(), live.end()}; }

  void stage_header(ConstBytes record);
  void stage_frame(ConstBytes record);
  void stage_commit(ConstBytes record);
  void check_complete();

  std::vector<BlockRun> cut_runs() const;
  std::vector<StateDigest> run(std::vector<BlockRun>& runs, Direction direction, bool keep);
  ApplyTarget target_of(const BlockRef& block) const;
  void audit_tensor(std::size_t tensor);
};

void Subscriber::State::stage_header(ConstBytes record) {
  const DeltaHeader header = parse_header(record);
  if (header.stream != options.stream) {
    throw Error(ErrorCode::kForeignStream,
                fmt::format("stream {} is not ours, {}", to_hex(header.stream), to_hex(options.stream)));
  }
  if (header.table_hash != table->hash() || header.elements != table->elements() || header.tensors != table->size()) {
    throw Error(ErrorCode::kTableMismatch,
                fmt::format("the delta carries another tensor table ({} tensors, {} elements)", header.tensors,
                            header.elements));
  }
  const bool forward = header.version > version;
  if (header.version == version || (!forward && !options.allow_rollback)) {
    throw Error(ErrorCode::kStaleVersion, fmt::format("version {} is not newer than {}", header.version, version));
  }
  if (header.base_version != version) {
    throw Error(ErrorCode::kVersionGap, fmt::format("version {} starts from {}, but version {} is here", header.version,
                                                    header.base_version, version));
  }
  if (header.base_digest != digest) {
    throw Error(ErrorCode::kWrongBase, fmt::format("version {} has other bytes here: digest {}, not {}", version,
                                                   to_hex(digest.value), to_hex(header.base_digest.value)));
  }
  staging.emplace();
  staging->header = header;
  staging->bytes = record.size();
}

void Subscriber::State::stage_frame(ConstBytes record) {
  if (!staging) throw Error(ErrorCode::kIncomplete, "a frame arrived before its header");
  const FrameHeader peeked = parse_frame_header(record);
  if (peeked.delta_id != staging->header.delta_id) {
    throw Error(ErrorCode::kForeignStream, "the frame belongs to another delta");
  }
  if (peeked.sequence >= block_limit) {
    throw Error(ErrorCode::kCorrupt, fmt::format("frame {} of at most {}", peeked.sequence, block_limit));
  }
  if (const auto found = staging->frames.find(peeked.sequence); found != staging->frames.end()) {
    if (found->second->reader.header().checksum == peeked.checksum) return;
    throw Error(ErrorCode::kCorrupt, fmt::format("two different frames {}", peeked.sequence));
  }
  if (staging->commit && peeked.sequence >= staging->commit->frames) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("frame {}, but the commit promises {}", peeked.sequence, staging->commit->frames));
  }
  const std::uint64_t size = record.size() + (peeked.compressed ? peeked.body_bytes : 0);
  if (staging->bytes + size > byte_limit) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("the delta is larger than {} bytes, more than its table allows", byte_limit));
  }
  auto frame = std::make_unique<StagedFrame>(record, staging->header, *table);
  ApplyScratch scratch;
  for (const BlockRef& block : frame->reader.blocks()) {
    try {
      validate_block(block, (*table)[block.tensor].dtype, scratch);
    } catch (const Error& error) {
      throw error.within(describe(frame->reader.header(), block, *table));
    }
  }
  staging->bytes += size;
  staging->frames.emplace(peeked.sequence, std::move(frame));
}

void Subscriber::State::stage_commit(ConstBytes record) {
  if (!staging) throw Error(ErrorCode::kIncomplete, "a commit record arrived before its header");
  const CommitRecord commit = parse_commit(record);
  if (commit.delta_id != staging->header.delta_id) {
    throw Error(ErrorCode::kForeignStream, "the commit record belongs to another delta");
  }
  if (commit.version != staging->header.version) throw Error(ErrorCode::kCorrupt, "the commit names another version");
  if (staging->commit && !std::ranges::equal(pack_commit(*staging->commit), record)) {
    throw Error(ErrorCode::kCorrupt, "two different commit records");
  }
  staging->commit = commit;
}

/// Once header, commit and all frames are here: do they belong together?
void Subscriber::State::check_complete() {
  if (!staging || !staging->commit || staging->complete) return;
  const CommitRecord& commit = *staging->commit;
  if (staging->frames.size() < commit.frames) return;
  Bytes checksums;
  std::uint64_t changed = 0;
  std::uint64_t bytes = 0;
  std::uint32_t expected = 0;
  const BlockRef* previous = nullptr;
  bool consistent = staging->frames.size() == commit.frames;
  for (const auto& [sequence, frame] : staging->frames) {
    consistent = consistent && sequence == expected++;
    const FrameHeader& header = frame->reader.header();
    const auto* checksum = reinterpret_cast<const std::byte*>(&header.checksum);
    checksums.insert(checksums.end(), checksum, checksum + 8);
    changed += header.changed;
    bytes += frame->bytes.size();
    const std::vector<BlockRef>& blocks = frame->reader.blocks();
    consistent = consistent && (previous == nullptr || follows(*previous, blocks.front()));
    previous = &blocks.back();
  }
  if (!consistent || changed != commit.changed || bytes != commit.frame_bytes ||
      xxh3_64(checksums) != commit.frames_hash) {
    throw Error(ErrorCode::kCorrupt, "the commit record does not match the frames");
  }
  staging->complete = true;
}

std::vector<BlockRun> Subscriber::State::cut_runs() const {
  std::vector<BlockRun> runs;
  for (const auto& [sequence, frame] : staging->frames) {
    const std::size_t blocks = frame->reader.blocks().size();
    for (std::size_t begin = 0; begin < blocks; begin += kBlocksPerRun) {
      runs.push_back({&frame->reader, begin, std::min(begin + kBlocksPerRun, blocks), {}});
    }
  }
  return runs;
}

ApplyTarget Subscriber::State::target_of(const BlockRef& block) const {
  const TensorSpec& spec = (*table)[block.tensor];
  ApplyTarget target;
  target.window = live[block.tensor].data() + block.first_element * element_size(spec.dtype);
  target.dtype = spec.dtype;
  target.key = table->digest_key(block.tensor);
  return target;
}

/// Applies or takes back all runs; returns each tensor's change of digest. `keep`: remember what raw blocks replace.
std::vector<StateDigest> Subscriber::State::run(std::vector<BlockRun>& runs, Direction direction, bool keep) {
  std::vector<StateDigest> changes(table->size());
  std::mutex changes_mutex;
  std::vector<ApplyScratch> scratch(static_cast<std::size_t>(resolve_threads(options.threads)));
  parallel_for(options.threads, runs.size(), [&](std::size_t worker, std::size_t i) {
    BlockRun& blocks = runs[i];
    std::size_t restored = 0;
    StateDigest change;
    for (std::size_t b = blocks.begin; b < blocks.end; ++b) {
      const BlockRef& block = blocks.frame->blocks()[b];
      ApplyTarget target = target_of(block);
      target.change = &change;
      const bool raw = block.coding.values == ValueCodec::kRaw;
      if (direction == Direction::kInverse && raw) {
        restored += restore_block(block, target, ConstBytes(blocks.replaced).subspan(restored), scratch[worker]);
      } else {
        if (keep && raw) target.replaced = &blocks.replaced;
        apply_block(block, target, direction, scratch[worker]);
      }
      const bool last_of_tensor = b + 1 == blocks.end || blocks.frame->blocks()[b + 1].tensor != block.tensor;
      if (last_of_tensor) {
        const std::lock_guard<std::mutex> lock(changes_mutex);
        changes[block.tensor] += change;
        change = {};
      }
    }
  });
  return changes;
}

void Subscriber::State::audit_tensor(std::size_t tensor) {
  const StateDigest found = digest_span(table->digest_key(tensor), (*table)[tensor].dtype, 0, live[tensor]);
  if (found == tensor_digests[tensor]) return;
  dirty = true;
  throw Error(ErrorCode::kDirty,
              fmt::format("its bytes have changed without a delta since version {} or before", version),
              fmt::format("tensor '{}'", (*table)[tensor].name));
}

Subscriber::Subscriber(std::shared_ptr<const TensorTable> table, std::vector<TensorBytes> live,
                       SubscriberOptions options)
    : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.table = std::move(table);
  state.live = std::move(live);
  state.options = options;
  state.options.stream = resolve_stream(options.stream, *state.table);
  state.version = options.version;
  if (state.live.size() != state.table->size()) {
    throw Error(ErrorCode::kUsage,
                fmt::format("{} live tensors for a table of {}", state.live.size(), state.table->size()));
  }
  std::uint64_t tiles = 0;
  for (std::size_t t = 0; t < state.live.size(); ++t) {
    const TensorSpec& spec = (*state.table)[t];
    if (state.live[t].size() != spec.bytes()) {
      throw Error(ErrorCode::kUsage, fmt::format("{} bytes for {}", state.live[t].size(), spec.bytes()),
                  fmt::format("tensor '{}'", spec.name));
    }
    tiles += (spec.elements() + kTileElems - 1) / kTileElems;
  }
  // No honest delta exceeds the dense bytes by more than 1 %, and a frame holds at least one block. Twice, because a
  // compressed frame is held beside its decoded body.
  const std::uint64_t dense = state.table->bytes();
  state.block_limit = tiles;
  state.byte_limit = 2 * (dense + dense / 32 + tiles * 256) + kMinFrameCapacity;
  state.tensor_digests = digest_tensors(*state.table, state.tensors(), options.threads);
  state.digest = sum(state.tensor_digests);
}

Subscriber::~Subscriber() = default;
Subscriber::Subscriber(Subscriber&&) noexcept = default;
Subscriber& Subscriber::operator=(Subscriber&&) noexcept = default;

void Subscriber::stage(ConstBytes record) {
  state_->require_clean();
  const RecordPrefix prefix = peek_record(record);
  if (prefix.bytes != record.size()) {
    throw Error(ErrorCode::kCorrupt, fmt::format("a record of {} bytes came as {}", prefix.bytes, record.size()));
  }
  switch (prefix.kind) {
    case RecordKind::kHeader:
      state_->stage_header(record);
      break;
    case RecordKind::kTable:
      if (!state_->staging) throw Error(ErrorCode::kIncomplete, "a table record arrived before its header");
      parse_table(record, state_->staging->header);
      break;
    case RecordKind::kFrame:
      state_->stage_frame(record);
      break;
    case RecordKind::kCommit:
      state_->stage_commit(record);
      break;
  }
  state_->check_complete();
}

void Subscriber::stage(const Delta& delta) {
  stage(delta.header);
  for (const Bytes& frame : delta.frames) stage(frame);
  stage(delta.commit);
}

bool Subscriber::ready() const noexcept { return state_->staging && state_->staging->complete; }

void Subscriber::discard() noexcept { state_->staging.reset(); }

ApplyReport Subscriber::apply() {
  State& state = *state_;
  state.require_clean();
  if (!ready()) throw Error(ErrorCode::kIncomplete, "the delta is not complete yet");
  state.applied.reset();
  State::Applied applied;
  applied.runs = state.cut_runs();
  applied.old_version = state.version;
  const CommitRecord commit = *state.staging->commit;
  // Until the proof is through, the state counts as dirty: an exception in between must not leave it looking clean.
  state.dirty = true;
  applied.changes = state.run(applied.runs, Direction::kForward, true);
  StateDigest reached = state.digest;
  reached += sum(applied.changes);
  if (reached != commit.result_digest) {
    StateDigest back = sum(applied.changes);
    back += sum(state.run(applied.runs, Direction::kInverse, false));
    state.staging.reset();
    if (back != StateDigest{}) {
      throw Error(ErrorCode::kDirty, "the result was wrong and could not be undone; an anchor is needed");
    }
    state.dirty = false;
    throw Error(ErrorCode::kDigestMismatch,
                fmt::format("version {} came out with digest {}, not {}; version {} stands as it was", commit.version,
                            to_hex(reached.value), to_hex(commit.result_digest.value), state.version));
  }
  for (std::size_t t = 0; t < applied.changes.size(); ++t) state.tensor_digests[t] += applied.changes[t];
  state.digest = reached;
  state.version = commit.version;
  state.dirty = false;
  applied.delta = std::move(*state.staging);
  state.staging.reset();
  state.applied = std::move(applied);
  return {state.version, commit.changed, state.digest};
}

void Subscriber::undo_last() {
  State& state = *state_;
  state.require_clean();
  if (!state.applied) throw Error(ErrorCode::kUsage, "there is no applied delta to take back");
  State::Applied applied = std::move(*state.applied);
  state.applied.reset();
  state.dirty = true;
  StateDigest back = sum(applied.changes);
  back += sum(state.run(applied.runs, Direction::kInverse, false));
  if (back != StateDigest{}) throw Error(ErrorCode::kDirty, "the delta could not be taken back; an anchor is needed");
  for (std::size_t t = 0; t < applied.changes.size(); ++t) state.tensor_digests[t] -= applied.changes[t];
  state.digest = sum(state.tensor_digests);
  state.version = applied.old_version;
  state.dirty = false;
}

std::uint64_t Subscriber::audit_next() {
  State& state = *state_;
  state.require_clean();
  if (state.options.audit_versions == 0 || state.table->size() == 0) return 0;
  state.audit_credit += state.table->bytes() / state.options.audit_versions + 1;
  std::uint64_t read = 0;
  for (std::size_t step = 0; step < state.table->size(); ++step) {
    const std::uint64_t bytes = state.live[state.audit_cursor].size();
    if (bytes > state.audit_credit) break;
    state.audit_tensor(state.audit_cursor);
    state.audit_credit -= bytes;
    read += bytes;
    state.audit_cursor = (state.audit_cursor + 1) % state.table->size();
  }
  return read;
}

void Subscriber::audit() {
  state_->require_clean();
  for (std::size_t t = 0; t < state_->table->size(); ++t) state_->audit_tensor(t);
}

void Subscriber::reset(std::uint64_t version, const StateDigest& expected) {
  State& state = *state_;
  state.staging.reset();
  state.applied.reset();
  state.dirty = true;
  std::vector<StateDigest> digests = digest_tensors(*state.table, state.tensors(), state.options.threads);
  const StateDigest found = sum(digests);
  if (found != expected) {
    throw Error(ErrorCode::kDigestMismatch,
                fmt::format("the anchor has digest {}, not {}", to_hex(found.value), to_hex(expected.value)));
  }
  state.tensor_digests = std::move(digests);
  state.digest = found;
  state.version = version;
  state.dirty = false;
}

std::uint64_t Subscriber::version() const noexcept { return state_->version; }
const StateDigest& Subscriber::digest() const noexcept { return state_->digest; }
bool Subscriber::dirty() const noexcept { return state_->dirty; }

}  // namespace sparsecast
