// SPDX-License-Identifier: Apache-2.0
#pragma once

// Memory of a rank's local tensors, and the operations that differ between host memory (host_shard_memory.cpp) and a
// device (device/device_shard_memory.cpp). Records are in host memory with both.

#include <memory>
#include <vector>

#include "codec/frame_reader.hpp"
#include "core/strided_view.hpp"
#include "sparsecast/device.hpp"
#include "sparsecast/fanout_plan.hpp"
#include "sparsecast/layout.hpp"
#include "sync/joined_publisher.hpp"
#include "sync/joined_subscriber.hpp"

namespace sparsecast {

/// Memory of the layout of a local tensor, and of its kind unless snapshots are pinned; null where there is none.
using ShardBuffer = std::shared_ptr<std::byte>;

/// Box of elements in a local tensor, or in memory that is laid out like it.
struct ShardBox {
  std::uint64_t first = 0;  ///< Element.
  std::vector<std::uint64_t> extents;
  std::vector<std::int64_t> strides;  ///< In elements.
  std::size_t element_bytes = 0;
};

/// Calls visit(rectangle) for what the box is made of (core/strided_view.hpp), with offsets in the local tensor.
template <class Visit>
void for_each_rectangle(const ShardBox& box, const Visit& visit) {
  const StridedView view = make_strided_view(box.extents, box.strides);
  for_each_rectangle(view, 0, Box{{}, box.extents}.elements(), [&](RowRectangle next) {
    next.offset += box.first;
    visit(next);
  });
}

/// Returns the places of a route's regions, which are at `views`, in memory that is laid out like the rank's tensors;
/// base_of(region, local) returns a reference to all of that of a local tensor, of which data, dtype and device count.
template <class BaseOf>
std::vector<TensorRef> refs_in(const FanoutPlan& plan, std::size_t route, const std::vector<RegionView>& views,
                               const BaseOf& base_of) {
  std::vector<TensorRef> out;
  const std::vector<Region>& regions = plan.routes()[route].regions;
  for (std::size_t p = 0; p < regions.size(); ++p) {
    TensorRef ref = base_of(p, views[p].local);
    if (ref.data != nullptr) ref.data += views[p].first * element_size(ref.dtype);
    ref.shape = regions[p].box.extent;
    ref.strides = views[p].strides;
    out.push_back(std::move(ref));
  }
  return out;
}

/// Reads the regions of a route for an anchor.
class RegionReader {
 public:
  virtual ~RegionReader() = default;
  /// Returns elements [first, first + count) of a region, one after another in host memory; `scratch` has room for
  /// them. They are valid until the next call, and while `scratch` is.
  virtual const std::byte* read(std::size_t region, std::uint64_t first, std::uint32_t count, std::byte* scratch) = 0;
};

/// Writes an anchor's blocks to where the regions of a route lie.
class RegionWriter {
 public:
  virtual ~RegionWriter() = default;
  /// Throws Error{kCorrupt} for a payload that is not valid.
  virtual void write(const BlockRef& block) = 0;
  /// Waits until everything is written.
  virtual void finish() = 0;
};

class ShardMemory {
 public:
  virtual ~ShardMemory() = default;
  ShardMemory(const ShardMemory&) = delete;
  ShardMemory& operator=(const ShardMemory&) = delete;

  /// Returns the rank's local tensors: of the layout's dtypes, or fp32 masters of its bf16.
  const std::vector<TensorRef>& local() const noexcept { return local_; }
  /// Returns the dtype of what receivers hold of a local tensor.
  DType wire_dtype(std::size_t local) const { return dtypes_[local]; }
  bool is_master(std::size_t local) const { return local_[local].dtype != dtypes_[local]; }
  /// Returns where all of it is.
  int device() const noexcept { return device_.device; }
  /// Returns the bytes that receivers hold of a local tensor.
  std::uint64_t wire_bytes(std::size_t local) const;

  virtual ShardBuffer allocate(std::uint64_t bytes) = 0;
  /// Copies the box between two memories of the same layout; later operations of this object see the copy.
  virtual void copy(const ShardBox& box, const std::byte* from, std::byte* to) = 0;
  /// Casts the box from fp32 masters to bf16 at `to`.
  virtual void cast(const ShardBox& box, const std::byte* masters, std::byte* to) = 0;
  /// Writes the current values of a local tensor, as receivers get them, to memory that is laid out like it.
  void take(std::size_t local, const ShardBox& box, std::byte* to) {
    is_master(local) ? cast(box, local_[local].data, to) : copy(box, local_[local].data, to);
  }

  /// Create the publisher and the subscriber of routes, one a stream; the references are parallel to the joined table.
  virtual std::unique_ptr<JoinedPublisher> make_publisher(JoinedTables tables, std::vector<TensorRef> live,
                                                          std::vector<TensorRef> held, const PublisherOptions& options);
  std::unique_ptr<JoinedSubscriber> make_subscriber(const JoinedTables& tables, std::vector<TensorRef> live,
                                                    const SubscriberOptions& options) const;
  /// One of each at a time is at work; table and memory outlive it. What is read has been returned by allocate().
  virtual std::unique_ptr<RegionReader> make_reader(const TensorTable& table,
                                                    const std::vector<TensorRef>& regions) = 0;
  virtual std::unique_ptr<RegionWriter> make_writer(const TensorTable& table,
                                                    const std::vector<TensorRef>& regions) = 0;

 protected:
  /// The device is that of the tensors, as are all the options for work on it.
  ShardMemory(std::vector<TensorRef> local, std::vector<DType> dtypes, DeviceOptions device)
      : local_(std::move(local)), dtypes_(std::move(dtypes)), device_(device) {}

 private:
  std::vector<TensorRef> local_;
  std::vector<DType> dtypes_;  ///< Parallel to them, by the layout.
  DeviceOptions device_;
};

/// Creates the memory of a rank's local tensors, parallel to its layout. `masters`: they may be fp32 where the layout
/// says bf16. Throws Error{kUsage} that names the tensor when they do not fit the rank of the layout, and
/// Error{kUnsupported} for a device without the device backend. `pinned_snapshot`: what allocate() returns is pinned
/// host memory, which the device reaches; Error{kUsage} for tensors of the host.
std::shared_ptr<ShardMemory> make_shard_memory(const Layout& layout, std::size_t rank, std::vector<TensorRef> local,
                                               bool masters, const DeviceOptions& device = {},
                                               bool pinned_snapshot = false);

/// Of checked tensors on this device (device/).
std::shared_ptr<ShardMemory> make_device_shard_memory(std::vector<TensorRef> local, std::vector<DType> dtypes,
                                                      const DeviceOptions& device, bool pinned_snapshot);
/// Returns a reader of regions that lie in host memory, with the rules of ShardMemory::make_reader.
std::unique_ptr<RegionReader> make_host_reader(const TensorTable& table, const std::vector<TensorRef>& regions);

}  // namespace sparsecast
