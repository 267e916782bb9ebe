// SPDX-License-Identifier: Apache-2.0
#include "cuda/encode/device_encoder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "codec/block.hpp"
#include "codec/record_layout.hpp"
#include "core/trace.hpp"
#include "cuda/common/encode_launchers.hpp"
#include "cuda/common/table_upload.hpp"
#include "cuda/encode/context_launchers.hpp"
#include "cuda/encode/encoder_state.hpp"

namespace sparsecast::cuda {
namespace {

std::uint64_t body_bytes_at_most(const TilePlan& plan) {
  return plan.worst_bytes + plan.tiles.size() * (kBlockEntryBytes + kGroupBytes);
}

std::uint64_t frames_at_most(const TilePlan& plan, std::uint32_t capacity) {
  // In every frame of a stream but the last, less space is free than the next block and its entries need. So twice the
  // number of full frames is a safe bound.
  return 2 * body_bytes_at_most(plan) / capacity + 1 + plan.streams.size();
}

/// Returns the size to which memory grows that must hold `needed`: half as much again, because each growth waits for
/// the whole device, but at most `most`, which is all that any delta can need.
std::uint64_t room_for(std::uint64_t needed, std::uint64_t most) {
  return std::max(needed, std::min(needed + needed / 2, most));
}

}  // namespace

DeviceEncoder::State::State(const JoinedTables& tables, DetectSource source, TilePlan plan, bool refresh,
                            const EncodeOptions& options, const DeviceEncoderOptions& device)
    : source_(source), device_(device), plan_(std::move(plan)), host_(device.deadline) {
  device_stream_ = on_current_device(nullptr);
  table_bytes_ = tables.all().bytes();
  table_elements_ = tables.all().elements();
  pipeline_.section_count = static_cast<std::uint32_t>(plan_.sections.size());
  pipeline_.frame_capacity = options.frame_capacity;
  context_ = options.positions == PositionMode::kContext;
  // With `context`, the coding of the blocks that `context` blocks are compared with.
  pipeline_.positions = context_ ? PositionMode::kAuto : options.positions;
  pipeline_.values = options.values;
  pipeline_.quick = rules_of(options).quick;
  pipeline_.refresh = refresh;
  pipeline_.stream_count = static_cast<std::uint32_t>(streams());

  tensors_ = DeviceMemory(plan_.tensors.size() * sizeof(TensorEntry));
  streams_ = DeviceMemory(plan_.streams.size() * sizeof(StreamEntry));
  sections_ = DeviceMemory(plan_.sections.size() * sizeof(SectionEntry));
  tiles_ = DeviceMemory(plan_.tiles.size() * sizeof(TileEntry));
  views_ = DeviceMemory(plan_.views.size() * sizeof(StridedView));
  pipeline_.tensors = tensors_.as<TensorEntry>();
  pipeline_.streams = streams_.as<StreamEntry>();
  pipeline_.sections = sections_.as<SectionEntry>();
  pipeline_.tiles = tiles_.as<TileEntry>();
  pipeline_.views = views_.as<StridedView>();

  sets_ = ChunkSets(plan_, std::min<std::uint64_t>(device.entries != 0 ? device.entries : plan_.chunk_entries,
                                                   plan_.most_chunk_entries));
  pipeline_.scratch_stride = context_ ? context_scratch_bytes(plan_.widest) : scratch_bytes(plan_.widest);
  unsigned ctas = encode_grid(plan_.chunk_tiles, device_stream_);
  if (context_) ctas = std::max(ctas, context_grid(plan_.chunk_tiles, device_stream_));
  scratch_ = DeviceMemory(ctas * pipeline_.scratch_stride, "scratch");
  pipeline_.scratch = scratch_.as();

  records_ = DeviceMemory(plan_.tiles.size() * sizeof(BlockRecord));
  order_ = DeviceMemory(plan_.tiles.size() * sizeof(OrderedBlock));
  section_blocks_ = DeviceMemory(plan_.sections.size() * sizeof(std::uint32_t));
  section_sums_ = DeviceMemory((plan_.sections.size() + 1) * sizeof(SectionSums));
  pipeline_.records = records_.as<BlockRecord>();
  pipeline_.order = order_.as<OrderedBlock>();
  pipeline_.section_blocks = section_blocks_.as<std::uint32_t>();
  pipeline_.section_sums = section_sums_.as<SectionSums>();

  if (context_) {
    context_memory_ = ContextMemory(plan_);
    contexts_ = context_memory_.tables();
  }

  const std::uint64_t frames = frames_at_most(plan_, options.frame_capacity);
  counts_ = DeviceMemory(head_bytes() + frames * sizeof(FrameEntry));
  h_counts_ = PinnedMemory(counts_.bytes());
  headers_ = DeviceMemory(frames * layout::kFramePrefix);
  h_headers_ = PinnedMemory(frames * layout::kFramePrefix);
  pipeline_.control = counts_.as<Control>();
  pipeline_.stream_sums = reinterpret_cast<StreamSums*>(counts_.as() + sizeof(Control));
  pipeline_.frames = reinterpret_cast<FrameEntry*>(counts_.as() + head_bytes());

  const std::uint64_t wanted =
      device.arena_bytes != 0 ? device.arena_bytes : plan_.chunk_room_bytes + table_bytes_ / 16;
  arena_ = DeviceMemory(std::clamp(wanted, plan_.chunk_room_bytes, plan_.worst_bytes), "payloads");
  pipeline_.arena = arena_.as();
  pipeline_.arena_bytes = arena_.bytes();
  frame_memory_ = DeviceMemory(device.frame_bytes != 0 ? device.frame_bytes : table_bytes_ / 16, "frames");
  pipeline_.frame_memory = frame_memory_.as();
  pipeline_.frame_memory_bytes = frame_memory_.bytes();
  if (device.overlap && plan_.chunks.size() > 1 && !device.after_step) encode_stream_ = std::make_unique<Stream>(true);
  enter_tiles(plan_, source_);
  upload_tables();
  load_kernels();
}

void DeviceEncoder::State::load_kernels() {
  DeviceStream loader = device_stream_;
  loader.loads_only = true;
  loader.most_shared_memory = true;
  launch_detect(source_, pipeline_, {}, false, loader);
  launch_end_chunk(pipeline_, loader);
  enqueue_encode(pipeline_, {}, loader);
  launch_cut_frames(pipeline_, loader);
  launch_assemble_frames(pipeline_, 0, 0, loader);
  launch_place_headers(pipeline_, nullptr, 0, loader);
}

/// Enqueues detecting and encoding the chunks from number `first` on. Detect is at most one chunk ahead of encode,
/// because a chunk and the chunk after next use the same set of memory.
void DeviceEncoder::State::enqueue_chunks(std::uint32_t first) {
  const bool overlaps = encode_stream_ != nullptr;
  const cudaStream_t stream = device_stream_.stream;
  DeviceStream encoding = device_stream_;
  if (overlaps) encoding.stream = encode_stream_->get();
  if (prefetch_) prefetch_->begin(first, stream);
  for (std::uint32_t c = first; c < plan_.chunks.size(); ++c) {
    Chunk chunk = plan_.chunks[c];
    chunk.room_bytes = chunk.worst_bytes + (c > first ? plan_.chunks[c - 1].worst_bytes : 0);
    Pipeline pipeline = sets_.enter(pipeline_, c);
    if (prefetch_) pipeline.tensors = prefetch_->enter(c, stream);
    if (overlaps && c >= first + 2) wait_behind(stream, encoded_[c % 2].get());
    launch_detect(source_, pipeline, chunk, overlaps && c > first, device_stream_);
    tell("detect");
    if (overlaps) {
      record(detected_[c % 2].get(), stream);
      wait_behind(encoding.stream, detected_[c % 2].get());
    }
    enqueue_encode(pipeline, chunk, encoding);
    if (c + 2 < plan_.chunks.size()) launch_end_chunk(pipeline, encoding);
    if (overlaps) record(encoded_[c % 2].get(), encoding.stream);
    tell("encode");
    if (prefetch_) prefetch_->leave(c, stream);
  }
  if (overlaps) wait_behind(stream, encoded_[(plan_.chunks.size() - 1) % 2].get());
}

void DeviceEncoder::State::enqueue_encode(const Pipeline& pipeline, const Chunk& chunk, const DeviceStream& stream) {
  if (context_) {
    // These must run before encode_blocks, which refreshes the old words of tiles without entries.
    launch_form_contexts(pipeline, chunk, contexts_, stream);
    for (unsigned size = 0; size < 4; ++size) {
      if (plan_.has_size[size]) launch_encode_contexts(source_, size, pipeline, chunk, contexts_, stream);
    }
  }
  for (unsigned size = 0; size < 4; ++size) {
    if (plan_.has_size[size]) launch_encode(source_, size, pipeline, chunk, stream);
  }
  if (context_) launch_choose_blocks(pipeline, chunk, contexts_, stream);
}

/// Returns the pipeline with the chosen blocks as its records.
Pipeline DeviceEncoder::State::chosen() const {
  Pipeline pipeline = pipeline_;
  if (context_) {
    pipeline.records = contexts_.chosen;
    pipeline.section_blocks = contexts_.chosen_blocks;
  }
  return pipeline;
}

void DeviceEncoder::State::enqueue_frames(const Pipeline& pipeline) {
  launch_cut_frames(pipeline, device_stream_);
  tell("cut");
  enqueue_assembly(pipeline);
}

void DeviceEncoder::State::enqueue_assembly(const Pipeline& pipeline) {
  launch_assemble_frames(pipeline, plan_.tiles.size(), plan_.worst_bytes, device_stream_);
  tell("assemble");
  enqueue_counts();
}

void DeviceEncoder::State::enqueue_counts() {
  copy_async(h_counts_.as(), counts_.as(), counts_.bytes(), cudaMemcpyDeviceToHost, device_stream_.stream);
}

void DeviceEncoder::State::upload_tables() {
  TableUpload upload;
  upload.add(tensors_, plan_.tensors.data());
  upload.add(streams_, plan_.streams.data());
  upload.add(sections_, plan_.sections.data());
  upload.add(tiles_, plan_.tiles.data());
  upload.add(views_, plan_.views.data());
  upload.finish(host_);
}

void DeviceEncoder::State::start(cudaStream_t stream) {
  const TraceRange<"device_encode.enqueue"> range({.bytes = table_bytes_});
  started_ = true;
  if (device_.graph && steady_ && !prefetch_ && !device_.after_step) {
    if (!graph_.captured()) {
      graph_.capture([this](cudaStream_t captured) {
        device_stream_.stream = captured;
        enqueue_delta();
      });
    }
    graph_.launch(stream);
    device_stream_.stream = stream;
  } else {
    device_stream_.stream = stream;
    enqueue_delta();
  }
}

void DeviceEncoder::State::enqueue_delta() {
  // The host reads the whole buffer each time, however many frames there are; memory checkers must find every byte
  // initialised.
  check(cudaMemsetAsync(counts_.as(), 0, std::exchange(cleared_, true) ? head_bytes() : counts_.bytes(),
                        device_stream_.stream),
        "cudaMemsetAsync");
  tell("");
  enqueue_chunks(0);
  enqueue_frames(chosen());
}

void DeviceEncoder::State::wait_for_counts() {
  const TraceRange<"device_encode.wait"> range;
  host_.wait(device_stream_.stream, "encode");
}

void DeviceEncoder::State::grow_arena() {
  const TraceRange<"device_encode.grow"> range({.bytes = counts().arena_used});
  const std::uint64_t needed = counts().arena_used + plan_.chunks[counts().next_chunk].worst_bytes;
  DeviceMemory larger(std::min(std::max(needed, 2 * pipeline_.arena_bytes), plan_.worst_bytes), "payloads");
  copy_async(larger.as(), arena_.as(), counts().arena_used, cudaMemcpyDeviceToDevice, device_stream_.stream);
  check(cudaMemsetAsync(&pipeline_.control->stopped, 0, sizeof(Control::stopped), device_stream_.stream),
        "cudaMemsetAsync");
  retired_arena_ = std::move(arena_);  // Kept until its contents have been copied.
  arena_ = std::move(larger);
  pipeline_.arena = arena_.as();
  pipeline_.arena_bytes = arena_.bytes();
  for (const std::uint32_t set : {0U, 1U}) launch_end_chunk(sets_.enter(pipeline_, set), device_stream_);
}

/// Grows the memory for frames if the frames that have been cut do not fit. Returns whether it had to grow.
bool DeviceEncoder::State::grow_frames() {
  if (counts().frames_bytes <= frame_memory_.bytes()) return false;
  frame_memory_ = DeviceMemory();
  frame_memory_ = DeviceMemory(room_for(counts().frames_bytes, body_bytes_at_most(plan_)), "frames");
  pipeline_.frame_memory = frame_memory_.as();
  pipeline_.frame_memory_bytes = frame_memory_.bytes();
  return true;
}

/// Grows the memory for entries, so that a delta like the last one would have entries for all tiles. This only saves
/// time, so a lack of memory is no error. Returns whether the memory has grown.
bool DeviceEncoder::State::grow_entries() {
  const std::uint64_t most = std::max({counts().most_entries, counts().chunks[0].entries, counts().chunks[1].entries});
  const std::uint64_t wanted = std::min<std::uint64_t>(most, plan_.most_chunk_entries);
  if (wanted <= sets_.entries()) return false;
  try {
    sets_.allocate_entries(room_for(wanted, plan_.most_chunk_entries));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    return false;
  }
  return true;
}

std::vector<DeviceFrames> DeviceEncoder::State::finish(std::span<const DeltaHeader> headers) {
  if (!started_) throw Error(ErrorCode::kUsage, "finish() without start()");
  started_ = false;
  if (headers.size() != streams()) {
    throw Error(ErrorCode::kUsage, fmt::format("{} headers for {} streams", headers.size(), streams()));
  }
  const std::uint64_t version = headers.empty() ? 0 : headers.front().version;
  const TraceRange<"device_encode.finish"> range({.version = version});
  wait_for_counts();
  bool grown = false;
  while (counts().stopped != 0) {
    grown = true;
    grow_arena();
    enqueue_chunks(counts().next_chunk);
    enqueue_frames(chosen());
    wait_for_counts();
    retired_arena_ = DeviceMemory();
  }
  if (grow_frames()) {
    grown = true;
    enqueue_assembly(chosen());
    wait_for_counts();
  }
  grown = grow_entries() || grown;
  steady_ = !grown;
  if (grown) graph_.drop();
  std::vector<DeviceFrames> out = complete_frames(headers);
  std::uint64_t frame_bytes = 0;
  std::uint64_t changed = 0;
  for (const DeviceFrames& stream : out) {
    frame_bytes += stream.commit.frame_bytes;
    changed += stream.commit.changed;
  }
  range.mark({.version = version,
              .bytes = frame_bytes,
              .changed = changed,
              .density = trace_density(changed, table_elements_)});
  return out;
}

std::vector<DeviceFrames> DeviceEncoder::State::without_context(std::span<const DeltaHeader> headers) {
  enqueue_frames(pipeline_);
  wait_for_counts();
  if (grow_frames()) {
    graph_.drop();
    enqueue_assembly(pipeline_);
    wait_for_counts();
  }
  return complete_frames(headers);
}

namespace {

/// Checks the options and the number of the caller's tensors, and plans the tiles of the joined table.
TilePlan make_plan(const JoinedTables& tables, std::size_t tensors, const EncodeOptions& options,
                   const DeviceEncoderOptions& device) {
  if (tensors != tables.all().size()) {
    throw Error(ErrorCode::kUsage, fmt::format("{} device tensors for a table of {}", tensors, tables.all().size()));
  }
  if (options.positions == PositionMode::kContext && options.values != ValueCodec::kUlp) {
    throw Error(ErrorCode::kUsage, "'context' positions need 'ulp' values");
  }
  if (options.zstd_level != 0) throw Error(ErrorCode::kUnsupported, "zstd is not done on the device");
  if (options.block_changes != kBlockChanges) {
    throw Error(ErrorCode::kUnsupported, fmt::format("a device codes blocks of {} changes only", kBlockChanges));
  }
  if (options.frame_capacity < kMinFrameCapacity || options.frame_capacity > kMaxFrameCapacity) {
    throw Error(ErrorCode::kUsage, fmt::format("frame capacity {} is out of range", options.frame_capacity));
  }
  return plan_tiles(tables, device.chunk_bytes, options.positions == PositionMode::kContext);
}

}  // namespace

DeviceEncoder::DeviceEncoder(std::unique_ptr<State> state) : state_(std::move(state)) {}
DeviceEncoder::DeviceEncoder(DeviceEncoder&&) noexcept = default;
DeviceEncoder::~DeviceEncoder() = default;
void DeviceEncoder::start(CUstream_st* stream) { state_->start(stream); }
std::vector<DeviceFrames> DeviceEncoder::finish(std::span<const DeltaHeader> headers) {
  return state_->finish(headers);
}
std::vector<DeviceFrames> DeviceEncoder::without_context(std::span<const DeltaHeader> headers) {
  return state_->without_context(headers);
}
DeviceFrames DeviceEncoder::finish(const DeltaHeader& header) {
  return std::move(state_->finish({&header, 1}).front());
}

DeviceEncoder DeviceEncoder::compare(const JoinedTables& tables, const std::vector<CompareTensor>& tensors,
                                     bool refresh, const EncodeOptions& options, const DeviceEncoderOptions& device) {
  TilePlan plan = make_plan(tables, tensors.size(), options, device);
  const DetectSource source = enter_tensors(plan, tables.all(), tensors);
  return DeviceEncoder(std::make_unique<State>(tables, source, std::move(plan), refresh, options, device));
}

DeviceEncoder DeviceEncoder::compare_pinned(const JoinedTables& tables, const std::vector<PinnedTensor>& tensors,
                                            bool refresh, const EncodeOptions& options,
                                            const DeviceEncoderOptions& device) {
  TilePlan plan = make_plan(tables, tensors.size(), options, device);
  enter_tensors(plan, tables.all(), tensors);
  auto state = std::make_unique<State>(tables, DetectSource::kCompare, std::move(plan), refresh, options, device);
  state->prefetch_old_bits();
  return DeviceEncoder(std::move(state));
}

DeviceEncoder DeviceEncoder::fused_cast(const JoinedTables& tables, const std::vector<CastTensor>& tensors,
                                        const EncodeOptions& options, const DeviceEncoderOptions& device) {
  TilePlan plan = make_plan(tables, tensors.size(), options, device);
  enter_tensors(plan, tables.all(), tensors);
  return DeviceEncoder(
      std::make_unique<State>(tables, DetectSource::kFusedCast, std::move(plan), true, options, device));
}

DeviceEncoder DeviceEncoder::mask(const JoinedTables& tables, const std::vector<MaskTensor>& tensors,
                                  const EncodeOptions& options, const DeviceEncoderOptions& device) {
  TilePlan plan = make_plan(tables, tensors.size(), options, device);
  if (options.values != ValueCodec::kRaw) {
    throw Error(ErrorCode::kUsage, "a mask does not know old bits; use raw values");
  }
  enter_tensors(plan, tables.all(), tensors);
  return DeviceEncoder(std::make_unique<State>(tables, DetectSource::kMask, std::move(plan), false, options, device));
}

}  // namespace sparsecast::cuda
