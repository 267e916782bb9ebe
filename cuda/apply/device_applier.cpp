// SPDX-License-Identifier: Apache-2.0
#include "cuda/apply/applier_state.hpp"
#include "cuda/common/table_upload.hpp"

namespace sparsecast::cuda {

DeviceApplier::State::State(JoinedTables tables, const std::vector<TensorRef>& tensors,
                            const DeviceApplierOptions& options)
    : tables_(std::move(tables)),
      options_(options),
      plan_(plan_tiles(tables_, ~std::uint64_t{0})),
      host_(options.deadline) {
  plan_.tiles = {};
  live_ = describe_live(table(), tensors, plan_);
  device_stream_ = on_current_device(nullptr);
  tensors_ = DeviceMemory(live_.size() * sizeof(LiveTensor));
  views_ = DeviceMemory(plan_.views.size() * sizeof(StridedView));
  sections_ = DeviceMemory(plan_.sections.size() * sizeof(SectionEntry));
  sums_ = DeviceMemory(table().size() * 16);
  h_sums_ = PinnedMemory(table().size() * 16);
  changes_ = DeviceMemory(table().size() * 16);
  h_changes_ = PinnedMemory(table().size() * 16);
  streams_ = DeviceMemory(tables_.streams() * sizeof(ReceivedStream));
  h_streams_ = PinnedMemory(tables_.streams() * sizeof(ReceivedStream));
  control_ = DeviceMemory(sizeof(ReceiveControl));
  h_control_ = PinnedMemory(sizeof(ReceiveControl));
  received_.tensors = tensors_.as<LiveTensor>();
  received_.views = views_.as<StridedView>();
  received_.control = control_.as<ReceiveControl>();
  received_.digest_changes = changes_.as<std::uint64_t>();
  received_.streams = streams_.as<ReceivedStream>();
  upload_tables();
  load_kernels();
}

void DeviceApplier::State::load_kernels() {
  DeviceStream loader = device_stream_;
  loader.loads_only = true;
  launch_inspect_frames(received_, 0, loader);
  launch_read_directories(received_, loader);
  for (unsigned size = 0; size < 4; ++size) {
    if (!plan_.has_size[size]) continue;
    launch_decode_blocks(size, received_, Pass::kValidate, loader);
    launch_decode_blocks(size, received_, Pass::kForward, loader);
    launch_decode_context(size, received_, loader);
  }
  launch_digest(received_, nullptr, 0, nullptr, loader);
  NanExpansion::load_kernels(plan_.has_size, loader);
}

void DeviceApplier::State::upload_tables() {
  TableUpload upload;
  upload.add(tensors_, live_.data());
  upload.add(views_, plan_.views.data());
  upload.add(sections_, plan_.sections.data());
  upload.finish(host_);
}

void DeviceApplier::State::enqueue(Pass pass, cudaStream_t stream) {
  const TraceRange<"device_apply"> range(of_delta_);
  expansion_.forget();
  device_stream_.stream = stream;
  tell("");
  if (received_.block_count == 0) return;
  require_unchanged();
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
  require_invertible(direction);
  enqueue(direction == Direction::kForward ? Pass::kForward : Pass::kInverse, stream);
  replaced_ = keeps_replaced();
}

void DeviceApplier::State::restore(cudaStream_t stream) {
  require_staged();
  if (!replaced_) throw Error(ErrorCode::kUsage, "no replaced bits are kept");
  enqueue(Pass::kRestore, stream);
}

void DeviceApplier::State::roll_back(cudaStream_t stream) {
  replaced_ ? restore(stream) : apply(Direction::kInverse, stream);
}

namespace {

StateDigest digest_at(const PinnedMemory& sums, std::size_t tensor) {
  return {{sums.as<std::uint64_t>()[2 * tensor], sums.as<std::uint64_t>()[2 * tensor + 1]}};
}

}  // namespace

std::vector<StateDigest> DeviceApplier::State::digest_changes() {
  require_staged();
  const TraceRange<"device_apply.wait"> range;
  host_.wait(device_stream_.stream, "apply");
  std::vector<StateDigest> out(table().size());
  if (received_.block_count == 0) return out;
  changed_since_ = decision().changed_input_error != kNoInputError;
  require_unchanged();
  for (std::size_t t = 0; t < out.size(); ++t) out[t] = digest_at(h_changes_, t);
  return out;
}

StateDigest DeviceApplier::State::prepare_expansion(Direction direction, cudaStream_t stream) {
  require_staged();
  require_invertible(direction);
  device_stream_.stream = stream;
  return expansion_.prepare(table(), received_, plan_.has_size, direction, host_, device_stream_);
}

void DeviceApplier::State::expand(std::size_t tensor, void* d_out, cudaStream_t stream) {
  device_stream_.stream = stream;
  expansion_.expand(table(), received_, tensor, d_out, device_stream_);
}

std::vector<StateDigest> DeviceApplier::State::digests(std::size_t first, std::size_t count, cudaStream_t stream) {
  const TraceRange<"device_digest"> range({.bytes = bytes_of(first, count)});
  device_stream_.stream = stream;
  std::vector<StateDigest> out(count);
  if (count == 0) return out;
  require_mapped(first, count);
  const std::uint32_t begin = plan_.tensors[first].first_section;
  const TensorEntry& last = plan_.tensors[first + count - 1];
  const std::uint64_t offset = 16 * first;
  check(cudaMemsetAsync(sums_.as() + offset, 0, 16 * count, stream), "cudaMemsetAsync");
  tell("");
  launch_digest(received_, sections_.as<SectionEntry>() + begin, last.first_section + last.sections - begin,
                sums_.as<std::uint64_t>(), device_stream_);
  tell("digest");
  copy_async(h_sums_.as() + offset, sums_.as() + offset, 16 * count, cudaMemcpyDeviceToHost, stream);
  host_.wait(stream, "compute the digest");
  for (std::size_t i = 0; i < count; ++i) out[i] = digest_at(h_sums_, first + i);
  return out;
}

DeviceApplier::DeviceApplier(JoinedTables tables, const std::vector<TensorRef>& tensors,
                             const DeviceApplierOptions& options)
    : state_(std::make_unique<State>(std::move(tables), tensors, options)) {}
DeviceApplier::DeviceApplier(DeviceApplier&&) noexcept = default;
DeviceApplier::~DeviceApplier() = default;
void DeviceApplier::stage(std::span<const StreamFrames> deltas, CUstream_st* stream) { state_->stage(deltas, stream); }
void DeviceApplier::stage(const DeltaHeader& header, std::span<const DeviceRecord> frames, CUstream_st* stream) {
  const StreamFrames only{0, &header, frames};
  state_->stage({&only, 1}, stream);
}
const std::vector<FrameHeader>& DeviceApplier::frames() const noexcept { return state_->headers(); }
void DeviceApplier::apply(Direction direction, CUstream_st* stream) { state_->apply(direction, stream); }
void DeviceApplier::restore(CUstream_st* stream) { state_->restore(stream); }
void DeviceApplier::roll_back(CUstream_st* stream) { state_->roll_back(stream); }
StateDigest DeviceApplier::prepare_expansion(Direction direction, CUstream_st* stream) {
  return state_->prepare_expansion(direction, stream);
}
const std::vector<std::size_t>& DeviceApplier::expansion_tensors() const noexcept {
  return state_->expansion_tensors();
}
void DeviceApplier::expand(std::size_t tensor, void* d_out, CUstream_st* stream) {
  state_->expand(tensor, d_out, stream);
}
void DeviceApplier::require_mapped() const { state_->require_mapped(); }
std::vector<StateDigest> DeviceApplier::digest_changes() { return state_->digest_changes(); }
std::vector<StateDigest> DeviceApplier::digests(std::size_t first, std::size_t count, CUstream_st* stream) {
  return state_->digests(first, count, stream);
}

}  // namespace sparsecast::cuda
