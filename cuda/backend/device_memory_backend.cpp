// SPDX-License-Identifier: Apache-2.0

// Backend for tensors on a device. All work is enqueued on one stream, so that copies finish before detectors and
// subscribers use them. Anchors pass through pinned memory in pieces, unless the snapshot is already there.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>

#include "codec/apply.hpp"
#include "core/strided_view.hpp"
#include "core/tensor_view.hpp"
#include "cuda/backend/device_detector.hpp"
#include "cuda/common/device_memory.hpp"
#include "cuda/common/encode_launchers.hpp"
#include "memory/memory_backend.hpp"

namespace sparsecast {
namespace {

constexpr std::uint64_t kStagingBytes = std::uint64_t{8} << 20;
/// Largest row pitch, in bytes, that every device accepts in a 2D copy.
constexpr std::uint64_t kMostPitch = std::numeric_limits<std::int32_t>::max();

/// Rows of bytes: their address, and the distance between their beginnings.
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

/// Grows pinned memory to exactly `bytes` bytes, without reserve, because it stays pinned.
void make_room(cuda::PinnedMemory& memory, std::uint64_t bytes) {
  if (memory.bytes() >= bytes) return;
  memory = cuda::PinnedMemory();
  memory = cuda::PinnedMemory(bytes, "an anchor");
}

/// Copies the regions of a route between their tensors and pinned memory, where the elements of a region are
/// contiguous.
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

  /// Enqueues the copy of elements [first, first + count) of a region.
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
  std::size_t region_ = 0;  ///< The region whose elements [begin_, end_) are staged.
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
};

/// Pinned memory that is filled from its beginning. It may be refilled once the copies out of it have been waited for.
struct Outbox {
  cuda::PinnedMemory memory;
  std::uint64_t used_bytes = 0;
};

class DeviceRegionWriter final : public RegionWriter {
 public:
  DeviceRegionWriter(RegionCopies regions, Outbox& outbox) : regions_(std::move(regions)), outbox_(outbox) {}
  /// Waits for all copies, even after a failure, because none may still write to the caller's memory afterwards.
  ~DeviceRegionWriter() override {
    try {
      if (outbox_.used_bytes != 0) finish();
    } catch (const Error&) {  // The next call on the stream reports the error again.
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

  void write(std::size_t region, std::uint64_t first, ConstBytes elements) override {
    if (elements.empty()) return;
    const cuda::DeviceGuard guard = regions_.context().enter();
    std::byte* const h_elements = take(elements.size());
    std::memcpy(h_elements, elements.data(), elements.size());
    regions_.copy(region, first, elements.size() / regions_.element_bytes(region), h_elements, cudaMemcpyHostToDevice);
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

class DeviceMemoryBackend final : public MemoryBackend {
 public:
  DeviceMemoryBackend(const DeviceOptions& options, bool pinned_copies)
      : options_(options), context_(options), pinned_copies_(pinned_copies) {}

  int device() const noexcept override { return context_.device(); }

  std::unique_ptr<Detector> make_detector(std::shared_ptr<const TensorTable> table, std::vector<TensorRef> live,
                                          DetectorOptions options) const override {
    return make_device_detector(std::move(table), std::move(live), std::move(options), context_, options_.chunk_bytes);
  }
  std::unique_ptr<SubscriberBackend> make_subscriber(const JoinedTables& tables, std::vector<TensorRef> live,
                                                     int) const override {
    return make_device_subscriber_backend(tables, std::move(live), context_);
  }

  Allocation allocate(std::uint64_t bytes) const override {
    const cuda::DeviceGuard guard = context_.enter();
    if (pinned_copies_) return owned<cuda::PinnedMemory>(bytes);
    return owned<cuda::DeviceMemory>(bytes);
  }

  void copy(const MemoryBox& box, const std::byte* from, std::byte* to, bool from_tensor) const override {
    const cuda::DeviceGuard guard = context_.enter();
    const bool on_host = pinned_copies_ && !from_tensor;  // Both sides are pinned copies.
    if (on_host) context_.wait("fill the snapshot");
    for_each_rectangle(box, [&](const RowRectangle& next) {
      const std::uint64_t at = next.offset * box.element_bytes;
      const std::uint64_t pitch = next.pitch * box.element_bytes;
      const std::uint64_t run = next.run * box.element_bytes;
      if (!on_host) {
        copy_rows({to + at, pitch}, {from + at, pitch}, run, next.rows,
                  pinned_copies_ ? cudaMemcpyDeviceToHost : cudaMemcpyDeviceToDevice, context_.stream());
        return;
      }
      for (std::uint64_t r = 0; r < next.rows; ++r) std::memcpy(to + at + r * pitch, from + at + r * pitch, run);
    });
  }

  void cast(const MemoryBox& box, const std::byte* masters, std::byte* to) const override {
    const cuda::DeviceGuard guard = context_.enter();
    const std::uint64_t elements = box.elements();
    if (elements == 0) return;
    cuda::launch_cast_masters(
        reinterpret_cast<const std::uint32_t*>(masters) + box.first, reinterpret_cast<std::uint16_t*>(to) + box.first,
        make_strided_view(box.extents, box.strides), elements, cuda::on_current_device(context_.stream()));
  }

  std::unique_ptr<RegionReader> make_reader(const TensorTable& table, const std::vector<TensorRef>& regions) override {
    if (pinned_copies_) {
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
  template <class Memory>
  static Allocation owned(std::uint64_t bytes) {
    const auto memory = std::make_shared<Memory>(bytes, "copies of tensors");
    return {memory, memory->template as<>()};
  }

  const DeviceOptions options_;
  const DeviceContext context_;
  const bool pinned_copies_;
  cuda::PinnedMemory inbox_;
  Outbox outbox_;
};

}  // namespace

std::shared_ptr<MemoryBackend> make_device_memory(const DeviceOptions& options, bool pinned_copies) {
  return std::make_shared<DeviceMemoryBackend>(options, pinned_copies);
}

}  // namespace sparsecast
