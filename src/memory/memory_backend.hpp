// SPDX-License-Identifier: Apache-2.0
#pragma once

// Interface between the library and the memory of tensors, with two implementations: the host's (host_memory.cpp) and a
// device's (cuda/backend/device_memory_backend.cpp). It makes detectors and the backends of subscribers, copies
// elements between tensors and snapshots, and reads and writes anchors. In both implementations, records are in host
// memory.

#include <memory>
#include <vector>

#include "codec/frame_reader.hpp"
#include "core/strided_view.hpp"
#include "memory/publisher_backend.hpp"
#include "memory/subscriber_backend.hpp"
#include "sparsecast/device.hpp"

namespace sparsecast {

/// Shared ownership of memory that MemoryBackend::allocate() has returned; null: no memory.
using Allocation = std::shared_ptr<std::byte>;

/// A box of elements of a contiguous tensor, or of memory with the same layout.
struct MemoryBox {
  std::uint64_t first = 0;  ///< Index, in the tensor, of the box's first element.
  std::vector<std::uint64_t> extents;
  std::vector<std::int64_t> strides;  ///< Stride of each dimension, in elements of the tensor.
  std::size_t element_bytes = 0;

  std::uint64_t elements() const noexcept {
    std::uint64_t count = 1;
    for (const std::uint64_t extent : extents) count *= extent;
    return count;
  }
};

/// Calls visit(rectangle) for each RowRectangle (core/strided_view.hpp) of the box. The offset of a rectangle is that
/// of its first element in the tensor, in elements.
template <class Visit>
void for_each_rectangle(const MemoryBox& box, const Visit& visit) {
  const StridedView view = make_strided_view(box.extents, box.strides);
  for_each_rectangle(view, 0, box.elements(), [&](RowRectangle next) {
    next.offset += box.first;
    visit(next);
  });
}

/// Reads the elements of a route's regions, to send them as an anchor (a full copy).
class RegionReader {
 public:
  virtual ~RegionReader() = default;
  /// Returns the address, in host memory, of elements [first, first + count) of a region, one after another. `scratch`
  /// has room for `count` elements; the reader may copy the elements there. The result is valid until the next call, as
  /// long as `scratch` exists.
  virtual const std::byte* read(std::size_t region, std::uint64_t first, std::uint32_t count, std::byte* scratch) = 0;
};

/// Writes the elements of an anchor (a full copy) into a route's regions.
class RegionWriter {
 public:
  virtual ~RegionWriter() = default;
  /// Decodes a block, and writes its elements into region number `block.tensor`. Throws Error{kCorrupt} for a payload
  /// that is not valid.
  virtual void write(const BlockRef& block) = 0;
  /// Writes elements into a region, from its element number `first` on. `elements` are the bytes of whole elements, and
  /// may be freed when the call returns.
  virtual void write(std::size_t region, std::uint64_t first, ConstBytes elements) = 0;
  /// Waits until everything is written.
  virtual void finish() = 0;
};

/// Memory of the host, or of one device. All work of the object on a device is on one stream, which its detectors and
/// subscribers share. They may outlive the object.
class MemoryBackend {
 public:
  MemoryBackend() = default;
  virtual ~MemoryBackend() = default;
  MemoryBackend(const MemoryBackend&) = delete;
  MemoryBackend& operator=(const MemoryBackend&) = delete;

  /// Returns the CUDA ordinal of the device, or kHostMemory.
  virtual int device() const noexcept = 0;

  /// Makes the detector of changes in tensors in this memory; `options` are those of PublisherOptions::detection. The
  /// caller must have checked that the tensors are in this memory.
  virtual std::unique_ptr<Detector> make_detector(std::shared_ptr<const TensorTable> table, std::vector<TensorRef> live,
                                                  DetectorOptions options) const = 0;
  /// Makes the backend of a subscriber whose tensors `live` are in this memory and parallel to the joined table. Throws
  /// Error{kUsage} when the tensors do not fit the table. `threads` is the number of host threads.
  virtual std::unique_ptr<SubscriberBackend> make_subscriber(const JoinedTables& tables, std::vector<TensorRef> live,
                                                             int threads) const = 0;

  /// Returns `bytes` bytes of new memory: on the host or the device, or, if the object was made with `pinned_copies`,
  /// pinned host memory.
  virtual Allocation allocate(std::uint64_t bytes) const = 0;
  /// Copies the elements of `box` from `from` to `to`, which have the same layout. `from_tensor`: whether `from` is a
  /// tensor of the caller, and not memory from allocate(). Later operations of this object see the copy.
  virtual void copy(const MemoryBox& box, const std::byte* from, std::byte* to, bool from_tensor) const = 0;
  /// Casts the elements of `box` from fp32 at `masters` to bf16 at `to`, which have the same layout.
  virtual void cast(const MemoryBox& box, const std::byte* masters, std::byte* to) const = 0;

  /// Returns a reader of `regions`, which lie in memory from allocate() and are parallel to `table`. Only one reader
  /// may be in use at a time; the table and the memory must outlive it.
  virtual std::unique_ptr<RegionReader> make_reader(const TensorTable& table,
                                                    const std::vector<TensorRef>& regions) = 0;
  /// Returns a writer into `regions`, tensors of the caller that are parallel to `table`. The table and the memory must
  /// outlive it.
  virtual std::unique_ptr<RegionWriter> make_writer(const TensorTable& table,
                                                    const std::vector<TensorRef>& regions) = 0;
};

/// Returns the backend of host memory.
std::shared_ptr<MemoryBackend> make_host_memory();
/// Returns the backend of a device's memory. With `pinned_copies`, allocate() returns pinned host memory, which the
/// device can access. Throws Error{kUnsupported} without a device, or in a build without the device backend.
std::shared_ptr<MemoryBackend> make_device_memory(const DeviceOptions& options, bool pinned_copies);
/// Returns the backend of the memory at `place`: the CUDA ordinal of a device, or kHostMemory. Throws as
/// make_device_memory() does, and Error{kUsage} when the options name another device, or for pinned copies of tensors
/// on the host.
std::shared_ptr<MemoryBackend> memory_at(int place, DeviceOptions options, bool pinned_copies = false);

/// Returns the CUDA ordinal of the device on which all tensors are, or kHostMemory. For an empty table, returns the
/// device of the options, or kHostMemory when they name none. Throws Error{kUsage} when tensors are on different
/// devices (common_device); `what` is the role of the tensors, for messages.
int place_of(const TensorTable& table, const std::vector<TensorRef>& tensors, const char* what,
             const DeviceOptions& options);
/// Makes the detector of changes in the tensors `live`, which may be on the host or on a device; `options` are those of
/// PublisherOptions::detection.
std::unique_ptr<Detector> make_detector(std::shared_ptr<const TensorTable> table, std::vector<TensorRef> live,
                                        DetectorOptions options = {});
/// Returns a reader of `regions`, which lie in host memory and are parallel to `table`. The table and the memory must
/// outlive it.
std::unique_ptr<RegionReader> make_host_reader(const TensorTable& table, const std::vector<TensorRef>& regions);

}  // namespace sparsecast
