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

/// A part's elements in memory of the kind at hand.
struct ShardView {
  std::byte* data = nullptr;
  std::vector<std::int64_t> strides;  ///< In elements, one a dimension of the region.
  bool masters = false;               ///< The elements are fp32 masters of the region's bf16.
};

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
/// base_of(region, local) returns the beginning of that of a local tensor.
template <class BaseOf>
std::vector<ShardView> views_in(const FanoutPlan& plan, std::size_t route, const std::vector<RegionView>& views,
                                const BaseOf& base_of) {
  std::vector<ShardView> out;
  const std::vector<Region>& regions = plan.routes()[route].regions;
  for (std::size_t p = 0; p < regions.size(); ++p) {
    const std::size_t size = element_size(plan.table()[regions[p].tensor].dtype);
    out.push_back({base_of(p, views[p].local) + views[p].first * size, views[p].strides});
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

  /// Returns addresses and sizes of the local tensors; addresses may be on a device.
  const std::vector<TensorBytes>& local() const noexcept { return local_; }
  /// Returns whether a local tensor is the fp32 master of a bf16 tensor of the layout.
  bool is_master(std::size_t local) const { return masters_[local]; }
  /// Returns the bytes that receivers hold of a local tensor; a master of fp32 is sent as bf16, half its size.
  std::uint64_t wire_bytes(std::size_t local) const { return local_[local].size() / (is_master(local) ? 2 : 1); }

  virtual ShardBuffer allocate(std::uint64_t bytes) = 0;
  /// Copies the box between two memories of the same layout; later operations of this object see the copy.
  virtual void copy(const ShardBox& box, const std::byte* from, std::byte* to) = 0;
  /// Casts the box from fp32 masters to bf16 at `to`.
  virtual void cast(const ShardBox& box, const std::byte* masters, std::byte* to) = 0;
  /// Writes the current values of a local tensor, as receivers get them, to memory that is laid out like it.
  void take(std::size_t local, const ShardBox& box, std::byte* to) {
    is_master(local) ? cast(box, local_[local].data(), to) : copy(box, local_[local].data(), to);
  }

  /// Create the publisher and the subscriber of routes, one a stream; the views are parallel to the joined table.
  virtual std::unique_ptr<JoinedPublisher> make_publisher(JoinedTables tables, const std::vector<ShardView>& live,
                                                          const std::vector<ShardView>& held,
                                                          const PublisherOptions& options) = 0;
  virtual std::unique_ptr<JoinedSubscriber> make_subscriber(JoinedTables tables, const std::vector<ShardView>& live,
                                                            const SubscriberOptions& options) = 0;
  /// One of each at a time is at work; table and memory outlive it. What is read has been returned by allocate().
  virtual std::unique_ptr<RegionReader> make_reader(const TensorTable& table,
                                                    const std::vector<ShardView>& regions) = 0;
  virtual std::unique_ptr<RegionWriter> make_writer(const TensorTable& table,
                                                    const std::vector<ShardView>& regions) = 0;

 protected:
  ShardMemory(std::vector<TensorBytes> local, std::vector<bool> masters)
      : local_(std::move(local)), masters_(std::move(masters)) {}

 private:
  std::vector<TensorBytes> local_;
  std::vector<bool> masters_;  ///< Parallel to them.
};

/// Returns the local tensors of a rank of the layout. Throws Error{kUsage} unless the caller has given as many.
const std::vector<LocalTensor>& local_tensors(const Layout& layout, std::size_t rank, std::size_t given);

/// Returns which tensors are masters, by ShardedOptions::local_dtypes. Throws Error{kUsage} that names the tensor.
std::vector<bool> local_masters(const std::vector<LocalTensor>& tensors, std::size_t rank,
                                const std::vector<DType>& dtypes);

/// Creates the memory of the caller's tensors. Throws Error{kUsage} that names the tensor when they do not fit the rank
/// of the layout.
std::shared_ptr<ShardMemory> make_host_shard_memory(const Layout& layout, std::size_t rank,
                                                    std::vector<TensorBytes> local,
                                                    const std::vector<DType>& dtypes = {});
/// Returns a reader of regions that lie in host memory, with the rules of ShardMemory::make_reader.
std::unique_ptr<RegionReader> make_host_reader(const TensorTable& table, const std::vector<ShardView>& regions);
/// `pinned_snapshot`: what allocate() returns is pinned host memory, which the device reaches. Throws
/// Error{kUnsupported} without the device backend, too.
std::shared_ptr<ShardMemory> make_device_shard_memory(const Layout& layout, std::size_t rank,
                                                      const std::vector<void*>& d_local, const DeviceOptions& options,
                                                      const std::vector<DType>& dtypes = {},
                                                      bool pinned_snapshot = false);

}  // namespace sparsecast
