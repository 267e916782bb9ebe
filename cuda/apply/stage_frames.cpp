// SPDX-License-Identifier: Apache-2.0

// Checks the frames of received deltas, all streams at once.

#include "codec/frame_reader.hpp"
#include "codec/record_layout.hpp"
#include "core/word.hpp"
#include "cuda/apply/applier_state.hpp"
#include "cuda/apply/input_error_text.hpp"

namespace sparsecast::cuda {

using layout::corrupt;

namespace {

/// Parses and checks a frame header as parse_frame_header does, from the words and sums that the device collected.
FrameHeader check_header(const FrameInspection& inspection, std::uint32_t record_bytes) {
  const FrameHeader frame = check_frame_fields(std::as_bytes(std::span(inspection.header)), record_bytes, [&] {
    return StateDigest{{inspection.sum_lo, inspection.sum_hi}};
  });
  const unsigned used = frame.stored_bytes % 8;
  if (used != 0 && inspection.last_word >> 8 * used != 0) corrupt("padding of the frame record must be zero");
  return frame;
}

}  // namespace

void DeviceApplier::State::upload_frames() {
  copy_async(frames_.as(), h_frames_.as(), headers_.size() * sizeof(ReceivedFrame), cudaMemcpyHostToDevice,
             device_stream_.stream);
}

/// Writes the tables of the deltas' streams and frames for the kernels, and resets what depends on the deltas. Throws
/// Error{kUsage | kTableMismatch | kCorrupt} for deltas that cannot be staged.
void DeviceApplier::State::list_streams(std::span<const StreamFrames> deltas) {
  if (deltas.size() > tables_.streams()) {
    throw Error(ErrorCode::kUsage, fmt::format("{} deltas of {} streams", deltas.size(), tables_.streams()));
  }
  std::size_t count = 0;
  for (const StreamFrames& delta : deltas) count += delta.frames.size();
  reserve(frames_, count * sizeof(ReceivedFrame));
  reserve(h_frames_, count * sizeof(ReceivedFrame));
  headers_.assign(count, {});
  received_.frames = frames_.as<ReceivedFrame>();
  received_.frame_count = static_cast<std::uint32_t>(count);
  received_.block_count = 0;
  changed_ = 0;
  any_raw_ = false;
  any_context_ = false;
  std::uint32_t f = 0;
  for (std::uint32_t d = 0; d < deltas.size(); ++d) {
    const StreamFrames& delta = deltas[d];
    if (delta.header->table_hash != tables_.table(delta.stream)->hash()) {
      throw Error(ErrorCode::kTableMismatch, "the delta is for another tensor table");
    }
    ReceivedStream stream;
    stream.first_tensor = static_cast<std::uint32_t>(tables_.first(delta.stream));
    stream.tensor_count = static_cast<std::uint32_t>(tables_.table(delta.stream)->size());
    stream.first_frame = f;
    stream.values = delta.header->values;
    stream.context = delta.header->positions == PositionMode::kContext;
    streams()[d] = stream;
    any_context_ = any_context_ || stream.context;
    any_raw_ = any_raw_ || stream.values == ValueCodec::kRaw;
    for (std::size_t i = 0; i < delta.frames.size(); ++i, ++f) {
      const DeviceRecord& record = delta.frames[i];
      if (record.d_record == nullptr || reinterpret_cast<std::uintptr_t>(record.d_record) % 8 != 0) {
        throw Error(ErrorCode::kUsage, fmt::format("record {} is not 8-byte aligned device memory", i));
      }
      if (record.record_bytes < layout::kFramePrefix || record.record_bytes % 8 != 0) corrupt("not a frame record");
      ReceivedFrame frame;
      frame.record = record.d_record;
      frame.record_bytes = record.record_bytes;
      frame.stream = d;
      frames()[f] = frame;
    }
  }
}

void DeviceApplier::State::inspect(std::span<const StreamFrames> deltas) {
  const TraceRange<"device_stage.inspect"> range;
  const std::uint64_t count = received_.frame_count;
  reserve(inspections_, count * sizeof(FrameInspection));
  reserve(h_inspections_, count * sizeof(FrameInspection));
  reserve(frame_undo_, count * 8);
  received_.inspections = inspections_.as<FrameInspection>();
  received_.frame_undo = frame_undo_.as<std::uint64_t>();
  std::uint32_t longest = 0;
  for (std::size_t f = 0; f < count; ++f) longest = std::max(longest, frames()[f].record_bytes);
  copy_async(streams_.as(), h_streams_.as(), deltas.size() * sizeof(ReceivedStream), cudaMemcpyHostToDevice,
             device_stream_.stream);
  upload_frames();
  check(cudaMemsetAsync(inspections_.as(), 0, count * sizeof(FrameInspection), device_stream_.stream),
        "cudaMemsetAsync");
  tell("");
  launch_inspect_frames(received_, longest, device_stream_);
  tell("inspect");
  copy_async(h_inspections_.as(), inspections_.as(), count * sizeof(FrameInspection), cudaMemcpyDeviceToHost,
             device_stream_.stream);
  host_.wait(device_stream_.stream, "read the frames");
}

/// Checks the header of the frame with index `frame`, which must be frame number `sequence` of its delta.
FrameHeader DeviceApplier::State::check_header_at(const StreamFrames& delta, std::uint32_t sequence,
                                                  std::size_t frame) const {
  const std::uint32_t record_bytes = frames()[frame].record_bytes;
  try {
    const FrameHeader header = check_header(h_inspections_.as<FrameInspection>()[frame], record_bytes);
    require_frame_of(*delta.header, header, record_bytes);
    if (header.compressed) throw Error(ErrorCode::kUnsupported, "zstd is not done on the device");
    if (header.groups == 0 || header.blocks < header.groups ||
        std::uint64_t{header.groups} * kGroupBytes + std::uint64_t{header.blocks} * kBlockEntryBytes >
            header.body_bytes) {
      corrupt(fmt::format("{} groups and {} blocks do not fit", header.groups, header.blocks));
    }
    if (header.sequence != sequence) corrupt(fmt::format("frame {} stands here", header.sequence));
    return header;
  } catch (const Error& error) {
    throw error.within(context_of(delta, sequence));
  }
}

/// Returns a text that names a frame, and its stream if there are several, as the context of an error.
std::string DeviceApplier::State::context_of(const StreamFrames& delta, std::uint32_t sequence) const {
  if (tables_.streams() == 1) return fmt::format("frame {}", sequence);
  return fmt::format("stream {}, tensors from '{}', frame {}", delta.stream, (*tables_.table(delta.stream))[0].name,
                     sequence);
}

void DeviceApplier::State::check_headers(std::span<const StreamFrames> deltas) {
  std::uint64_t blocks = 0;
  for (std::size_t d = 0; d < deltas.size(); ++d) {
    const std::size_t first = streams()[d].first_frame;
    for (std::uint32_t i = 0; i < deltas[d].frames.size(); ++i) {
      const FrameHeader header = check_header_at(deltas[d], i, first + i);
      ReceivedFrame& received = frames()[first + i];
      received.changed = header.changed;
      received.first_change = changed_;
      received.body_bytes = header.body_bytes;
      received.groups = header.groups;
      received.blocks = header.blocks;
      received.first_block = static_cast<std::uint32_t>(blocks);
      headers_[first + i] = header;
      blocks += header.blocks;
      changed_ += header.changed;
    }
  }
  if (blocks >> 32 != 0) throw Error(ErrorCode::kUnsupported, "the deltas have too many blocks for one device");
  received_.block_count = static_cast<std::uint32_t>(blocks);
}

/// Entries take at most 1/kEntriesOfFree of the device's free memory; the engine may need the rest.
constexpr std::uint64_t kEntriesOfFree = 4;

/// Allocates memory for the entries of the staged deltas, unless it would be too much. Without entries the pause is
/// longer.
void DeviceApplier::State::reserve_entries() {
  received_.entry_positions = nullptr;
  received_.entry_word_bytes = plan_.widest;
  const std::uint64_t most = options_.entry_bytes.value_or(table().bytes() / 16) / (4 + plan_.widest);
  if (changed_ == 0 || changed_ > most) return;
  if (changed_ * plan_.widest > entry_words_.bytes()) {
    entry_positions_ = DeviceMemory();
    entry_words_ = DeviceMemory();
    const std::uint64_t entries = std::min(most, changed_ + changed_ / 2);
    std::size_t free = 0;
    std::size_t total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    if (entries * (4 + plan_.widest) > free / kEntriesOfFree) return;
    try {
      entry_positions_ = DeviceMemory(entries * sizeof(std::uint32_t), "entries");
      entry_words_ = DeviceMemory(entries * plan_.widest, "entries");
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
      entry_positions_ = DeviceMemory();
      return;
    }
  }
  received_.entry_positions = entry_positions_.as<std::uint32_t>();
  received_.entry_words = entry_words_.as();
}

/// Allocates memory for the entries of deltas with `context` positions. They must be kept, because the places cannot be
/// decoded once the weights have changed.
void DeviceApplier::State::reserve_context() {
  received_.entry_word_bytes = plan_.widest;
  try {
    reserve(entry_positions_, changed_ * sizeof(std::uint32_t), "entries");
    reserve(entry_words_, changed_ * plan_.widest, "entries");
    reserve(context_changes_, changed_ * sizeof(std::uint32_t), "entries");
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    throw error.within(fmt::format("{} changes with 'context' positions", changed_));
  }
  received_.entry_positions = entry_positions_.as<std::uint32_t>();
  received_.entry_words = entry_words_.as();
  received_.changes = context_changes_.as<std::uint32_t>();
}

void DeviceApplier::State::validate(std::span<const StreamFrames> deltas) {
  const TraceRange<"device_stage.validate"> range;
  if (any_context_) require_mapped();
  any_context_ ? reserve_context() : reserve_entries();
  reserve(group_begins_, std::uint64_t{received_.block_count} * sizeof(std::uint32_t));
  reserve(blocks_, std::uint64_t{received_.block_count} * sizeof(ReceivedBlock));
  reserve(cta_blocks_, std::uint64_t{received_.block_count} * sizeof(std::uint32_t));
  received_.group_begins = group_begins_.as<std::uint32_t>();
  received_.blocks = blocks_.as<ReceivedBlock>();
  received_.cta_blocks = cta_blocks_.as<std::uint32_t>();
  upload_frames();
  *h_control_.as<ReceiveControl>() = ReceiveControl{};
  copy_async(control_.as(), h_control_.as(), sizeof(ReceiveControl), cudaMemcpyHostToDevice, device_stream_.stream);
  tell("");
  launch_read_directories(received_, device_stream_);
  tell("directories");
  for (unsigned size = 0; size < 4; ++size) {
    if (!plan_.has_size[size]) continue;
    launch_decode_blocks(size, received_, Pass::kValidate, device_stream_);
    if (any_context_) launch_decode_context(size, received_, device_stream_);
  }
  tell("validate");
  read_control();
  host_.wait(device_stream_.stream, "validate");
  const std::uint64_t input_error = std::min(decision().directory_input_error, decision().block_input_error);
  if (input_error != kNoInputError) explain(input_error, deltas);
  if (keeps_replaced()) reserve(undo_, decision().undo_bytes, "replaced bits");
}

/// Decodes a block on the CPU. For `context` positions, copies the old words from the live tensor first.
void DeviceApplier::State::decode_again(const BlockRef& block, std::size_t tensor) {
  const TensorSpec& spec = table()[tensor];
  ApplyScratch scratch;
  if (block.coding.positions != PositionCodec::kContext) return validate_block(block, spec.dtype, scratch);
  const std::size_t size = element_size(spec.dtype);
  const StridedView* const view = live_[tensor].view == kNoView ? nullptr : &plan_.views[live_[tensor].view];
  // The range of memory from the first to the last element: of the block, or of a whole view, whose strides may be
  // negative.
  std::int64_t first = view == nullptr ? static_cast<std::int64_t>(block.first_element) : 0;
  std::int64_t last = view == nullptr ? first + block.span - 1 : 0;
  for (std::uint32_t d = 0; view != nullptr && d < view->rank; ++d) {
    const std::int64_t reach = static_cast<std::int64_t>(view->extents[d].divisor - 1) * view->strides[d];
    (reach < 0 ? first : last) += reach;
  }
  const std::int64_t begin = first * static_cast<std::int64_t>(size);
  const PinnedMemory h_old(static_cast<std::size_t>(last + 1 - first) * size);
  // A live tensor, or a frame, may lie in pinned memory.
  copy_async(h_old.as(), live_[tensor].data + begin, h_old.bytes(), cudaMemcpyDefault, device_stream_.stream);
  host_.wait(device_stream_.stream, "hand back a tensor");
  const OldBits old{h_old.as() - (view == nullptr ? 0 : begin), spec.dtype, view};
  with_word(size, [&]<class T>() { decode_block(block, scratch.get<T>(), &old); });
}

/// Throws an error that says what is wrong and where: decodes the block that `input_error` names again, on the CPU.
void DeviceApplier::State::explain(std::uint64_t input_error, std::span<const StreamFrames> deltas) {
  const auto number = static_cast<std::uint32_t>(input_error >> 8);
  std::size_t f = headers_.size() - 1;
  while (frames()[f].first_block > number) --f;
  const StreamFrames& delta = deltas[frames()[f].stream];
  const TensorTable& table = *tables_.table(delta.stream);
  const PinnedMemory h_record(frames()[f].record_bytes);
  copy_async(h_record.as(), frames()[f].record, h_record.bytes(), cudaMemcpyDefault, device_stream_.stream);
  host_.wait(device_stream_.stream, "hand back a frame");
  const FrameReader frame(ConstBytes(h_record.as(), h_record.bytes()), *delta.header, table);
  const BlockRef& block = frame.blocks()[number - frames()[f].first_block];
  const auto reason = static_cast<InputError>(input_error & 0xFF);
  try {
    decode_again(block, streams()[frames()[f].stream].first_tensor + block.tensor);
    throw Error(reason == InputError::kBase ? ErrorCode::kWrongBase : ErrorCode::kCorrupt,
                describe_input_error(reason));
  } catch (const Error& error) {
    throw error.within(describe(frame.header(), block, table));
  }
}

void DeviceApplier::State::stage(std::span<const StreamFrames> deltas, cudaStream_t stream) {
  staged_ = false;
  changed_since_ = false;
  replaced_ = false;
  of_delta_ = {};
  for (const StreamFrames& delta : deltas) {
    of_delta_.version = delta.header->version;
    for (const DeviceRecord& record : delta.frames) of_delta_.bytes += record.record_bytes;
  }
  const TraceRange<"device_stage"> range(of_delta_);
  expansion_.forget();
  device_stream_.stream = stream;
  list_streams(deltas);
  if (received_.frame_count != 0) {
    inspect(deltas);
    check_headers(deltas);
    validate(deltas);
  }
  of_delta_.changed = changed_;
  of_delta_.density = trace_density(of_delta_.changed, table().elements());
  staged_ = true;
}

}  // namespace sparsecast::cuda
