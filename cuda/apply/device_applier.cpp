// SPDX-License-Identifier: Apache-2.0
#include "cuda/apply/device_applier.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "codec/frame_reader.hpp"
#include "codec/record_layout.hpp"
#include "core/trace.hpp"
#include "cuda/apply/apply_launchers.hpp"
#include "cuda/apply/input_error_text.hpp"
#include "cuda/apply/live_tensors.hpp"
#include "cuda/apply/nan_expansion.hpp"
#include "cuda/common/device_memory.hpp"
#include "cuda/common/device_stream.hpp"

namespace sparsecast::cuda {

using layout::corrupt;

namespace {

/// Parses and checks a frame header as parse_frame_header does, from the words and sums that the device has gathered.
FrameHeader check_header(const FrameInspection& inspection, std::uint32_t record_bytes) {
  const FrameHeader frame = check_frame_fields(std::as_bytes(std::span(inspection.header)), record_bytes, [&] {
    return StateDigest{{inspection.sum_lo, inspection.sum_hi}};
  });
  const unsigned used = frame.stored_bytes % 8;
  if (used != 0 && inspection.last_word >> 8 * used != 0) corrupt("padding of the frame record must be zero");
  return frame;
}

}  // namespace

class DeviceApplier::State {
 public:
  State(const TensorTable& table, const std::vector<DeviceTensor>& tensors, const DeviceApplierOptions& options);

  void stage(const DeltaHeader& header, std::span<const DeviceRecord> frames, cudaStream_t stream);
  void enqueue(Pass pass, cudaStream_t stream);
  void apply(Direction direction, cudaStream_t stream);
  void restore(cudaStream_t stream);
  std::vector<StateDigest> digest_changes();
  std::vector<StateDigest> digests(std::size_t first, std::size_t count, cudaStream_t stream);
  StateDigest prepare_expansion(Direction direction, cudaStream_t stream);
  void expand(std::size_t tensor, void* d_out, cudaStream_t stream);
  const std::vector<std::size_t>& expansion_tensors() const noexcept { return expansion_.tensors(); }
  const std::vector<FrameHeader>& headers() const noexcept { return headers_; }

 private:
  void upload_tables();
  void upload_frames();
  void inspect(std::span<const DeviceRecord> frames);
  void check_headers(const DeltaHeader& header, std::span<const DeviceRecord> frames);
  void validate(const DeltaHeader& header);
  [[noreturn]] void explain(std::uint64_t input_error, const DeltaHeader& header);
  void require_staged() const {
    if (!staged_) throw Error(ErrorCode::kUsage, "no delta is staged");
  }
  bool keeps_replaced() const {
    return options_.keep_replaced == KeepReplaced::kAll ||
           (options_.keep_replaced == KeepReplaced::kRaw && received_.values == ValueCodec::kRaw);
  }
  std::uint64_t bytes_of(std::size_t first, std::size_t count) const {
    std::uint64_t bytes = 0;
    for (std::size_t t = first; t < first + count; ++t) bytes += table_[t].bytes();
    return bytes;
  }
  ReceivedFrame* frames() const { return h_frames_.as<ReceivedFrame>(); }
  void tell(const char* step) const {
    if (options_.after_step) options_.after_step(step);
  }
  const ReceiveControl& decision() const { return *h_control_.as<ReceiveControl>(); }
  void read_control() {
    copy_async(h_control_.as(), control_.as(), sizeof(ReceiveControl), cudaMemcpyDeviceToHost, device_stream_.stream);
  }

  const TensorTable& table_;
  DeviceApplierOptions options_;
  TilePlan plan_;
  std::vector<LiveTensor> live_;
  Received received_;
  DeviceStream device_stream_;
  NanExpansion expansion_;
  std::vector<FrameHeader> headers_;
  TracePayload of_delta_;
  bool uploaded_ = false;
  bool staged_ = false;
  bool replaced_ = false;  ///< True while the undo record is that of the last apply.

  DeviceMemory tensors_, views_, sections_, sums_, changes_, control_;
  DeviceMemory frames_, inspections_, frame_undo_, group_begins_, blocks_, undo_;
  PinnedMemory h_frames_, h_inspections_, h_control_, h_sums_, h_changes_;
};

DeviceApplier::State::State(const TensorTable& table, const std::vector<DeviceTensor>& tensors,
                            const DeviceApplierOptions& options)
    : table_(table), options_(options), plan_(plan_tiles(table, ~std::uint64_t{0})) {
  plan_.tiles = {};
  live_ = describe_live(table, tensors, plan_);
  device_stream_.multiprocessors = multiprocessors();
  tensors_ = DeviceMemory(live_.size() * sizeof(LiveTensor));
  views_ = DeviceMemory(plan_.views.size() * sizeof(StridedView));
  sections_ = DeviceMemory(plan_.sections.size() * sizeof(SectionEntry));
  sums_ = DeviceMemory(table.size() * 16);
  h_sums_ = PinnedMemory(table.size() * 16);
  changes_ = DeviceMemory(table.size() * 16);
  h_changes_ = PinnedMemory(table.size() * 16);
  control_ = DeviceMemory(sizeof(ReceiveControl));
  h_control_ = PinnedMemory(sizeof(ReceiveControl));
  received_.tensors = tensors_.as<LiveTensor>();
  received_.views = views_.as<StridedView>();
  received_.control = control_.as<ReceiveControl>();
  received_.digest_changes = changes_.as<std::uint64_t>();
  received_.tensor_count = static_cast<std::uint32_t>(table.size());
}

void DeviceApplier::State::upload_tables() {
  if (uploaded_) return;
  // Copied in stream order; the tables live as long as this object.
  const auto upload = [this](const DeviceMemory& to, const void* from) {
    copy_async(to.as(), from, to.bytes(), cudaMemcpyHostToDevice, device_stream_.stream);
  };
  upload(tensors_, live_.data());
  upload(views_, plan_.views.data());
  upload(sections_, plan_.sections.data());
  uploaded_ = true;
}

void DeviceApplier::State::upload_frames() {
  copy_async(frames_.as(), h_frames_.as(), headers_.size() * sizeof(ReceivedFrame), cudaMemcpyHostToDevice,
             device_stream_.stream);
}

void DeviceApplier::State::inspect(std::span<const DeviceRecord> records) {
  const TraceRange<"device_stage.inspect"> range;
  const std::uint64_t count = records.size();
  reserve(frames_, count * sizeof(ReceivedFrame));
  reserve(h_frames_, count * sizeof(ReceivedFrame));
  reserve(inspections_, count * sizeof(FrameInspection));
  reserve(h_inspections_, count * sizeof(FrameInspection));
  reserve(frame_undo_, count * 8);
  received_.frames = frames_.as<ReceivedFrame>();
  received_.inspections = inspections_.as<FrameInspection>();
  received_.frame_undo = frame_undo_.as<std::uint64_t>();
  received_.frame_count = static_cast<std::uint32_t>(count);
  std::uint32_t longest = 0;
  for (std::size_t f = 0; f < count; ++f) {
    const DeviceRecord& record = records[f];
    if (record.d_record == nullptr || reinterpret_cast<std::uintptr_t>(record.d_record) % 8 != 0) {
      throw Error(ErrorCode::kUsage, fmt::format("record {} is not 8-byte aligned device memory", f));
    }
    if (record.record_bytes < layout::kFramePrefix || record.record_bytes % 8 != 0) corrupt("not a frame record");
    ReceivedFrame frame;
    frame.record = record.d_record;
    frame.record_bytes = record.record_bytes;
    frames()[f] = frame;
    longest = std::max(longest, record.record_bytes);
  }
  upload_frames();
  check(cudaMemsetAsync(inspections_.as(), 0, count * sizeof(FrameInspection), device_stream_.stream),
        "cudaMemsetAsync");
  tell("");
  launch_inspect_frames(received_, longest, device_stream_);
  tell("inspect");
  copy_async(h_inspections_.as(), inspections_.as(), count * sizeof(FrameInspection), cudaMemcpyDeviceToHost,
             device_stream_.stream);
  wait_for(device_stream_.stream, options_.deadline, "read the frames");
}

void DeviceApplier::State::check_headers(const DeltaHeader& header, std::span<const DeviceRecord> records) {
  std::uint64_t blocks = 0;
  for (std::size_t f = 0; f < records.size(); ++f) {
    const std::uint32_t record_bytes = records[f].record_bytes;
    const FrameHeader frame = check_header(h_inspections_.as<FrameInspection>()[f], record_bytes);
    try {
      require_frame_of(header, frame, record_bytes);
      if (frame.compressed) throw Error(ErrorCode::kUnsupported, "zstd is not done on the device");
      if (frame.groups == 0 || frame.blocks < frame.groups ||
          std::uint64_t{frame.groups} * kGroupBytes + std::uint64_t{frame.blocks} * kBlockEntryBytes >
              frame.body_bytes) {
        corrupt(fmt::format("{} groups and {} blocks do not fit", frame.groups, frame.blocks));
      }
      if (frame.sequence != f) corrupt(fmt::format("it stands where frame {} belongs", f));
    } catch (const Error& error) {
      throw error.within(fmt::format("frame {}", frame.sequence));
    }
    ReceivedFrame& received = frames()[f];
    received.changed = frame.changed;
    received.body_bytes = frame.body_bytes;
    received.groups = frame.groups;
    received.blocks = frame.blocks;
    received.first_block = static_cast<std::uint32_t>(blocks);
    headers_[f] = frame;
    blocks += frame.blocks;
  }
  if (blocks >> 32 != 0) throw Error(ErrorCode::kUnsupported, "the delta has too many blocks for one device");
  received_.block_count = static_cast<std::uint32_t>(blocks);
}

void DeviceApplier::State::validate(const DeltaHeader& header) {
  const TraceRange<"device_stage.validate"> range;
  received_.values = header.values;
  reserve(group_begins_, std::uint64_t{received_.block_count} * sizeof(std::uint32_t));
  reserve(blocks_, std::uint64_t{received_.block_count} * sizeof(ReceivedBlock));
  received_.group_begins = group_begins_.as<std::uint32_t>();
  received_.blocks = blocks_.as<ReceivedBlock>();
  upload_frames();
  *h_control_.as<ReceiveControl>() = ReceiveControl{};
  copy_async(control_.as(), h_control_.as(), sizeof(ReceiveControl), cudaMemcpyHostToDevice, device_stream_.stream);
  tell("");
  launch_read_directories(received_, device_stream_);
  tell("directories");
  for (unsigned size = 0; size < 4; ++size) {
    if (plan_.has_size[size]) launch_decode_blocks(size, received_, Pass::kValidate, device_stream_);
  }
  tell("validate");
  read_control();
  wait_for(device_stream_.stream, options_.deadline, "validate");
  const std::uint64_t input_error = std::min(decision().directory_input_error, decision().block_input_error);
  if (input_error != kNoInputError) explain(input_error, header);
  if (keeps_replaced()) reserve(undo_, decision().undo_bytes);
}

/// Decodes the frame again on the CPU, whose error says what is wrong and where.
void DeviceApplier::State::explain(std::uint64_t input_error, const DeltaHeader& header) {
  const auto number = static_cast<std::uint32_t>(input_error >> 8);
  std::size_t f = headers_.size() - 1;
  while (frames()[f].first_block > number) --f;
  Bytes record(frames()[f].record_bytes);
  copy_async(record.data(), frames()[f].record, record.size(), cudaMemcpyDeviceToHost, device_stream_.stream);
  wait_for(device_stream_.stream, options_.deadline, "hand back a frame");
  const FrameReader frame(record, header, table_);
  const BlockRef& block = frame.blocks()[number - frames()[f].first_block];
  ApplyScratch scratch;
  try {
    validate_block(block, table_[block.tensor].dtype, scratch);
    corrupt(describe_input_error(static_cast<InputError>(input_error & 0xFF)));
  } catch (const Error& error) {
    throw error.within(describe(frame.header(), block, table_));
  }
}

void DeviceApplier::State::stage(const DeltaHeader& header, std::span<const DeviceRecord> records,
                                 cudaStream_t stream) {
  staged_ = false;
  replaced_ = false;
  of_delta_ = {.version = header.version};
  for (const DeviceRecord& record : records) of_delta_.bytes += record.record_bytes;
  const TraceRange<"device_stage"> range(of_delta_);
  expansion_.forget();
  device_stream_.stream = stream;
  if (header.table_hash != table_.hash()) {
    throw Error(ErrorCode::kTableMismatch, "the delta is for another tensor table");
  }
  upload_tables();
  headers_.assign(records.size(), {});
  received_.frame_count = received_.block_count = 0;
  if (!records.empty()) {
    inspect(records);
    check_headers(header, records);
    validate(header);
  }
  received_.values = header.values;
  for (const FrameHeader& frame : headers_) of_delta_.changed += frame.changed;
  of_delta_.density = trace_density(of_delta_.changed, table_.elements());
  staged_ = true;
}

void DeviceApplier::State::enqueue(Pass pass, cudaStream_t stream) {
  const TraceRange<"device_apply"> range(of_delta_);
  expansion_.forget();
  device_stream_.stream = stream;
  tell("");
  if (received_.block_count == 0) return;
  check(cudaMemsetAsync(changes_.as(), 0, changes_.bytes(), stream), "cudaMemsetAsync");
  received_.undo = keeps_replaced() ? undo_.as() : nullptr;
  for (unsigned size = 0; size < 4; ++size) {
    if (plan_.has_size[size]) launch_decode_blocks(size, received_, pass, device_stream_);
  }
  tell("apply");
  copy_async(h_changes_.as(), changes_.as(), changes_.bytes(), cudaMemcpyDeviceToHost, stream);
  read_control();
}

void DeviceApplier::State::apply(Direction direction, cudaStream_t stream) {
  require_staged();
  if (direction == Direction::kInverse && received_.values == ValueCodec::kRaw) {
    throw Error(ErrorCode::kUsage, "a raw block cannot be inverted without the bits it replaced");
  }
  enqueue(direction == Direction::kForward ? Pass::kForward : Pass::kInverse, stream);
  replaced_ = keeps_replaced();
}

void DeviceApplier::State::restore(cudaStream_t stream) {
  require_staged();
  if (!replaced_) throw Error(ErrorCode::kUsage, "no replaced bits are kept");
  enqueue(Pass::kRestore, stream);
}

namespace {

StateDigest digest_at(const PinnedMemory& sums, std::size_t tensor) {
  return {{sums.as<std::uint64_t>()[2 * tensor], sums.as<std::uint64_t>()[2 * tensor + 1]}};
}

}  // namespace

std::vector<StateDigest> DeviceApplier::State::digest_changes() {
  require_staged();
  const TraceRange<"device_apply.wait"> range;
  wait_for(device_stream_.stream, options_.deadline, "apply");
  std::vector<StateDigest> out(table_.size());
  if (received_.block_count == 0) return out;
  if (decision().block_input_error != kNoInputError) {
    throw Error(ErrorCode::kCorrupt, "the frames have changed since they were staged");
  }
  for (std::size_t t = 0; t < out.size(); ++t) out[t] = digest_at(h_changes_, t);
  return out;
}

StateDigest DeviceApplier::State::prepare_expansion(Direction direction, cudaStream_t stream) {
  require_staged();
  device_stream_.stream = stream;
  return expansion_.prepare(table_, received_, plan_.has_size, direction, options_.deadline, device_stream_);
}

void DeviceApplier::State::expand(std::size_t tensor, void* d_out, cudaStream_t stream) {
  device_stream_.stream = stream;
  expansion_.expand(table_, received_, tensor, d_out, device_stream_);
}

std::vector<StateDigest> DeviceApplier::State::digests(std::size_t first, std::size_t count, cudaStream_t stream) {
  const TraceRange<"device_digest"> range({.bytes = bytes_of(first, count)});
  device_stream_.stream = stream;
  upload_tables();
  std::vector<StateDigest> out(count);
  if (count == 0) return out;
  const std::uint32_t begin = plan_.tensors[first].first_section;
  const TensorEntry& last = plan_.tensors[first + count - 1];
  const std::uint64_t offset = 16 * first;
  check(cudaMemsetAsync(sums_.as() + offset, 0, 16 * count, stream), "cudaMemsetAsync");
  tell("");
  launch_digest(received_, sections_.as<SectionEntry>() + begin, last.first_section + last.sections - begin,
                sums_.as<std::uint64_t>(), device_stream_);
  tell("digest");
  copy_async(h_sums_.as() + offset, sums_.as() + offset, 16 * count, cudaMemcpyDeviceToHost, stream);
  wait_for(stream, options_.deadline, "compute the digest");
  for (std::size_t i = 0; i < count; ++i) out[i] = digest_at(h_sums_, first + i);
  return out;
}

DeviceApplier::DeviceApplier(const TensorTable& table, const std::vector<DeviceTensor>& tensors,
                             const DeviceApplierOptions& options)
    : state_(std::make_unique<State>(table, tensors, options)) {}
DeviceApplier::DeviceApplier(DeviceApplier&&) noexcept = default;
DeviceApplier::~DeviceApplier() = default;
void DeviceApplier::stage(const DeltaHeader& header, std::span<const DeviceRecord> frames, CUstream_st* stream) {
  state_->stage(header, frames, stream);
}
const std::vector<FrameHeader>& DeviceApplier::frames() const noexcept { return state_->headers(); }
void DeviceApplier::apply(Direction direction, CUstream_st* stream) { state_->apply(direction, stream); }
void DeviceApplier::restore(CUstream_st* stream) { state_->restore(stream); }
StateDigest DeviceApplier::prepare_expansion(Direction direction, CUstream_st* stream) {
  return state_->prepare_expansion(direction, stream);
}
const std::vector<std::size_t>& DeviceApplier::expansion_tensors() const noexcept {
  return state_->expansion_tensors();
}
void DeviceApplier::expand(std::size_t tensor, void* d_out, CUstream_st* stream) {
  state_->expand(tensor, d_out, stream);
}
std::vector<StateDigest> DeviceApplier::digest_changes() { return state_->digest_changes(); }
std::vector<StateDigest> DeviceApplier::digests(std::size_t first, std::size_t count, CUstream_st* stream) {
  return state_->digests(first, count, stream);
}

}  // namespace sparsecast::cuda
