// SPDX-License-Identifier: Apache-2.0

// A rank's local tensors on a device: snapshots, routes and anchors of sharded syncs. Everything is enqueued on one
// stream, so that copies are before what the routes do with them; anchors pass through pinned memory in pieces, unless
// the snapshot lies there.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>

#include "codec/apply.hpp"
#include "core/strided_view.hpp"
#include "core/tensor_view.hpp"
#include "cuda/common/device_memory.hpp"
#include "cuda/common/encode_launchers.hpp"
#include "device/device_context.hpp"
#include "sharded/shard_memory.hpp"

namespace sparsecast {
namespace {

constexpr std::uint64_t kStagingBytes = std::uint64_t{8} << 20;
/// cudaStreamPerThread, which CUDA's headers have as a cast that no constant can be made of.
const auto kStreamPerThread = reinterpret_cast<cudaStream_t>(std::uintptr_t{2});
/// Largest row pitch, in bytes, that every device accepts in a 2D copy.
constexpr std::uint64_t kMostPitch = std::numeric_limits<std::int32_t>::max();

/// Runs of bytes, and how far apart they begin.
template <class Byte>
struct RowsAt {
  Byte* data = nullptr;
  std::uint64_t pitch_bytes = 0;
};

void copy_rows(const RowsAt<std::byte>& to, const RowsAt<const std::byte>& from, std::uint64_t run_bytes,
               std::uint64_t rows, cudaMemcpyKind kind, cudaStream_t stream) {
  const auto [low, high] = std::minmax(to.pitch_bytes, from.pitch_bytes);
  if (rows > 1 && low >= run_bytes && high <= kMostPitch) {
    cuda::check(cudaMemcpy2DAsync(to.data, to.pitch_bytes, from.data, from.pitch_bytes, run_bytes, rows, kind, stream),
                "cudaMemcpy2DAsync");
    return;
  }
  for (std::uint64_t r = 0; r < rows; ++r) {
    cuda::copy_async(to.data + r * to.pitch_bytes, from.data + r * from.pitch_bytes, run_bytes, kind, stream);
  }
}

/// Grows pinned memory to exactly this size, because it stays pinned.
void make_room(cuda::PinnedMemory& memory, std::uint64_t bytes) {
  if (memory.bytes() >= bytes) return;
  memory = cuda::PinnedMemory();
  memory = cuda::PinnedMemory(bytes);
}

/// Copies of the regions of a route between their tensors and pinned memory, in which their elements follow one
/// another.
class RegionCopies {
 public:
  RegionCopies(const TensorTable& table, const std::vector<TensorRef>& regions, const DeviceContext& context)
      : context_(context), table_(table), regions_(regions) {
    for (std::size_t p = 0; p < table.size(); ++p) views_.push_back(view_of_tensor(table[p], regions[p].strides));
  }

  const DeviceContext& context() const noexcept { return context_; }
  std::uint64_t element_bytes(std::size_t region) const { return element_size(table_[region].dtype); }
  std::uint64_t elements(std::size_t region) const { return table_[region].elements(); }
  DType dtype(std::size_t region) const { return table_[region].dtype; }

  /// Enqueues the copy of elements [first, first + count).
  void copy(std::size_t region, std::uint64_t first, std::uint64_t count, std::byte* h_elements,
            cudaMemcpyKind kind) const {
    const std::uint64_t size = element_bytes(region);
    for_each_rectangle(views_[region], first, count, [&](const RowRectangle& next) {
      const RowsAt<std::byte> host{h_elements + next.first * size, next.run * size};
      const RowsAt<std::byte> device{regions_[region].data + next.offset * size, next.pitch * size};
      const auto& [to, from] = kind == cudaMemcpyHostToDevice ? std::tie(device, host) : std::tie(host, device);
      copy_rows(to, {from.data, from.pitch_bytes}, next.run * size, next.rows, kind, context_.stream());
    });
  }

 private:
  const DeviceContext& context_;
  const TensorTable& table_;
  std::vector<TensorRef> regions_;
  std::vector<StridedView> views_;
};

class DeviceRegionReader final : public RegionReader {
 public:
  DeviceRegionReader(RegionCopies regions, cuda::PinnedMemory& staging)
      : regions_(std::move(regions)), staging_(staging) {}

  const std::byte* read(std::size_t region, std::uint64_t first, std::uint32_t count, std::byte*) override {
    if (region != region_ || first < begin_ || first + count > end_) fetch(region, first, count);
    return staging_.as() + (first - begin_) * regions_.element_bytes(region);
  }

 private:
  /// Fetches more elements than needed now, because an anchor reads all of them, tile by tile.
  void fetch(std::size_t region, std::uint64_t first, std::uint64_t count) {
    const cuda::DeviceGuard guard = regions_.context().enter();
    const std::uint64_t size = regions_.element_bytes(region);
    count = std::min(std::max(count, kStagingBytes / size), regions_.elements(region) - first);
    end_ = 0;
    make_room(staging_, count * size);
    regions_.copy(region, first, count, staging_.as(), cudaMemcpyDeviceToHost);
    regions_.context().wait("read the anchor");
    region_ = region;
    begin_ = first;
    end_ = first + count;
  }

  RegionCopies regions_;
  cuda::PinnedMemory& staging_;
  std::size_t region_ = 0;  ///< Region whose elements [begin_, end_) are in the staging memory.
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
};

/// Pinned memory that is filled from its beginning, until the copies out of it have been waited for.
struct Outbox {
  cuda::PinnedMemory memory;
  std::uint64_t used_bytes = 0;
};

class DeviceRegionWriter final : public RegionWriter {
 public:
  DeviceRegionWriter(RegionCopies regions, Outbox& outbox) : regions_(std::move(regions)), outbox_(outbox) {}
  /// Waits for all copies, even after a failure: none of the library's may still write to the caller's memory.
  ~DeviceRegionWriter() override {
    try {
      if (outbox_.used_bytes != 0) finish();
    } catch (const Error&) {  // The next call on the stream reports it again.
    }
  }

  void write(const BlockRef& block) override {
    if (block.changed != block.span) {
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("a block of an anchor has {} of its {} elements", block.changed, block.span));
    }
    const cuda::DeviceGuard guard = regions_.context().enter();
    ApplyTarget target;
    target.window = take(block.span * regions_.element_bytes(block.tensor));
    target.dtype = regions_.dtype(block.tensor);
    apply_block(block, target, Direction::kForward, scratch_);
    regions_.copy(block.tensor, block.first_element, block.span, target.window, cudaMemcpyHostToDevice);
  }

  void finish() override {
    const cuda::DeviceGuard guard = regions_.context().enter();
    regions_.context().wait("write the anchor");
    outbox_.used_bytes = 0;
  }

 private:
  std::byte* take(std::uint64_t bytes) {
    if (outbox_.used_bytes + bytes > outbox_.memory.bytes()) {
      if (outbox_.used_bytes != 0) finish();
      make_room(outbox_.memory, std::max(bytes, kStagingBytes));
    }
    std::byte* const h_taken = outbox_.memory.as() + outbox_.used_bytes;
    outbox_.used_bytes += bytes;
    return h_taken;
  }

  RegionCopies regions_;
  Outbox& outbox_;
  ApplyScratch scratch_;
};

/// Returns the options for routes, which work on the context's stream.
DeviceOptions on_stream_of(const DeviceContext& context, DeviceOptions options) {
  options.device = context.device();
  options.stream = context.stream();
  return options;
}

class DeviceShardMemory final : public ShardMemory {
 public:
  DeviceShardMemory(std::vector<TensorRef> local, std::vector<DType> dtypes, const DeviceOptions& options,
                    bool pinned_snapshot)
      : DeviceShardMemory(std::move(local), std::move(dtypes), options, pinned_snapshot, DeviceContext(options)) {}

  ShardBuffer allocate(std::uint64_t bytes) override {
    const cuda::DeviceGuard guard = context_.enter();
    if (pinned_snapshot_) return owned<cuda::PinnedMemory>(bytes);
    return owned<cuda::DeviceMemory>(bytes);
  }

  void copy(const ShardBox& box, const std::byte* from, std::byte* to) override {
    const cuda::DeviceGuard guard = context_.enter();
    const bool from_tensor = std::ranges::any_of(local(), [&](const TensorRef& t) { return t.data == from; });
    const bool on_host = pinned_snapshot_ && !from_tensor;  // From one copy to another.
    if (on_host) context_.wait("fill the snapshot");
    for_each_rectangle(box, [&](const RowRectangle& next) {
      const std::uint64_t at = next.offset * box.element_bytes;
      const std::uint64_t pitch = next.pitch * box.element_bytes;
      const std::uint64_t run = next.run * box.element_bytes;
      if (!on_host) {
        copy_rows({to + at, pitch}, {from + at, pitch}, run, next.rows,
                  pinned_snapshot_ ? cudaMemcpyDeviceToHost : cudaMemcpyDeviceToDevice, context_.stream());
        return;
      }
      for (std::uint64_t r = 0; r < next.rows; ++r) std::memcpy(to + at + r * pitch, from + at + r * pitch, run);
    });
  }

  void cast(const ShardBox& box, const std::byte* masters, std::byte* to) override {
    const cuda::DeviceGuard guard = context_.enter();
    const std::uint64_t elements = Box{{}, box.extents}.elements();
    if (elements == 0) return;
    cuda::launch_cast_masters(
        reinterpret_cast<const std::uint32_t*>(masters) + box.first, reinterpret_cast<std::uint16_t*>(to) + box.first,
        make_strided_view(box.extents, box.strides), elements, {context_.stream(), cuda::multiprocessors()});
  }

  std::unique_ptr<RegionReader> make_reader(const TensorTable& table, const std::vector<TensorRef>& regions) override {
    if (pinned_snapshot_) {
      const cuda::DeviceGuard guard = context_.enter();
      context_.wait("leave the snapshot to an anchor");
      return make_host_reader(table, regions);
    }
    return std::make_unique<DeviceRegionReader>(RegionCopies(table, regions, context_), inbox_);
  }
  std::unique_ptr<RegionWriter> make_writer(const TensorTable& table, const std::vector<TensorRef>& regions) override {
    return std::make_unique<DeviceRegionWriter>(RegionCopies(table, regions, context_), outbox_);
  }

 private:
  DeviceShardMemory(std::vector<TensorRef> local, std::vector<DType> dtypes, const DeviceOptions& options,
                    bool pinned_snapshot, DeviceContext context)
      : ShardMemory(std::move(local), std::move(dtypes), on_stream_of(context, options)),
        context_(std::move(context)),
        pinned_snapshot_(pinned_snapshot) {}

  template <class Memory>
  static ShardBuffer owned(std::uint64_t bytes) {
    const auto memory = std::make_shared<Memory>(bytes);
    return {memory, memory->template as<>()};
  }

  const DeviceContext context_;
  const bool pinned_snapshot_;
  cuda::PinnedMemory inbox_;
  Outbox outbox_;
};

}  // namespace

std::shared_ptr<ShardMemory> make_device_shard_memory(std::vector<TensorRef> local, std::vector<DType> dtypes,
                                                      const DeviceOptions& device, bool pinned_snapshot) {
  if (device.stream == kStreamPerThread) {
    throw Error(ErrorCode::kUsage, "cudaStreamPerThread is another stream on each of the threads that a sync has",
                "DeviceOptions::stream");
  }
  return std::make_shared<DeviceShardMemory>(std::move(local), std::move(dtypes), device, pinned_snapshot);
}

}  // namespace sparsecast
