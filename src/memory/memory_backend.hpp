// SPDX-License-Identifier: Apache-2.0
#pragma once

// Interface between the library and the memory of tensors, with two implementations: the host's (host_memory.cpp) and a
// device's (cuda/backend/device_memory_backend.cpp). It makes detectors and the backends of publishers and subscribers,
// and does the work of shards on snapshots and anchors. Records are in host memory with both.

#include <memory>
#include <vector>

#include "codec/frame_reader.hpp"
#include "core/strided_view.hpp"
#include "memory/publisher_backend.hpp"
#include "memory/subscriber_backend.hpp"
#include "sparsecast/device.hpp"

namespace sparsecast {

/// Memory from MemoryBackend::allocate(); null for no memory.
using Allocation = std::shared_ptr<std::byte>;

/// Box of elements in a contiguous tensor, or in memory that is laid out like it.
struct MemoryBox {
  std::uint64_t first = 0;  ///< Index of the box's first element.
  std::vector<std::uint64_t> extents;
  std::vector<std::int64_t> strides;  ///< In elements.
  std::size_t element_bytes = 0;

  std::uint64_t elements() const noexcept {
    std::uint64_t count = 1;
    for (const std::uint64_t extent : extents) count *= extent;
    return count;
  }
};

/// Calls visit(rectangle) for each rectangle of the box (core/strided_view.hpp), with offsets in the tensor.
template <class Visit>
void for_each_rectangle(const MemoryBox& box, const Visit& visit) {
  const StridedView view = make_strided_view(box.extents, box.strides);
  for_each_rectangle(view, 0, box.elements(), [&](RowRectangle next) {
    next.offset += box.first;
    visit(next);
  });
}

/// Reads the regions of a route for an anchor.
class RegionReader {
 public:
  virtual ~RegionReader() = default;
  /// Returns elements [first, first + count) of a region, one after another in host memory; `scratch` has room for
  /// them. The result is valid until the next call, and no longer than `scratch`.
  virtual const std::byte* read(std::size_t region, std::uint64_t first, std::uint32_t count, std::byte* scratch) = 0;
};

/// Writes an anchor's blocks into the regions of a route.
class RegionWriter {
 public:
  virtual ~RegionWriter() = default;
  /// Throws Error{kCorrupt} for a payload that is not valid.
  virtual void write(const BlockRef& block) = 0;
  /// Writes whole elements of a region, from `first` on. `elements` may be freed when the call returns.
  virtual void write(std::size_t region, std::uint64_t first, ConstBytes elements) = 0;
  /// Waits until everything is written.
  virtual void finish() = 0;
};

/// Memory of the host, or of one device. All work of the object on a device is on one stream. Its detectors and
/// subscribers share that stream, and may outlive the object.
class MemoryBackend {
 public:
  MemoryBackend() = default;
  virtual ~MemoryBackend() = default;
  MemoryBackend(const MemoryBackend&) = delete;
  MemoryBackend& operator=(const MemoryBackend&) = delete;

  /// Returns the device, or kHostMemory.
  virtual int device() const noexcept = 0;

  /// Creates the detector of tensors in this memory; see PublisherOptions::detection. The caller has checked that the
  /// tensors are in this memory.
  virtual std::unique_ptr<Detector> make_detector(std::shared_ptr<const TensorTable> table, std::vector<TensorRef> live,
                                                  DetectorOptions options) const = 0;
  /// Creates the backend of a subscriber of tensors in this memory, parallel to the joined table. Throws Error{kUsage}
  /// when the tensors do not fit the table. `threads` counts host threads.
  virtual std::unique_ptr<SubscriberBackend> make_subscriber(const JoinedTables& tables, std::vector<TensorRef> live,
                                                             int threads) const = 0;

  /// Returns memory of this kind; on a device that was asked for pinned copies, pinned host memory.
  virtual Allocation allocate(std::uint64_t bytes) const = 0;
  /// Copies `box` from `from` to `to`, which have the same layout. `from_tensor`: `from` is a caller's tensor, not
  /// memory of allocate(). Later operations of this object see the copy.
  virtual void copy(const MemoryBox& box, const std::byte* from, std::byte* to, bool from_tensor) const = 0;
  /// Casts the box from fp32 masters to bf16 at `to`.
  virtual void cast(const MemoryBox& box, const std::byte* masters, std::byte* to) const = 0;

  /// Only one reader and one writer may be in use at a time; the table and the memory must outlive them. A reader reads
  /// memory of allocate().
  virtual std::unique_ptr<RegionReader> make_reader(const TensorTable& table,
                                                    const std::vector<TensorRef>& regions) = 0;
  virtual std::unique_ptr<RegionWriter> make_writer(const TensorTable& table,
                                                    const std::vector<TensorRef>& regions) = 0;
};

std::shared_ptr<MemoryBackend> make_host_memory();
/// `pinned_copies`: allocate() returns pinned host memory, which the device can access. Throws Error{kUnsupported}
/// without a device, or in a build without the device backend.
std::shared_ptr<MemoryBackend> make_device_memory(const DeviceOptions& options, bool pinned_copies);
/// Returns the memory of tensors at `place`, a device or kHostMemory. Throws as the two functions above, and
/// Error{kUsage} when the options name another device, or for pinned copies of tensors on the host.
std::shared_ptr<MemoryBackend> memory_at(int place, DeviceOptions options, bool pinned_copies = false);

/// Returns the device of all tensors (common_device); for an empty table, the device of the options, or kHostMemory.
int place_of(const TensorTable& table, const std::vector<TensorRef>& tensors, const char* what,
             const DeviceOptions& options);
/// Makes the detector of changes in `live`, of the memory that the tensors are in; see PublisherOptions::detection.
std::unique_ptr<Detector> make_detector(std::shared_ptr<const TensorTable> table, std::vector<TensorRef> live,
                                        DetectorOptions options = {});
/// Returns a reader of regions that lie in host memory, with the rules of MemoryBackend::make_reader.
std::unique_ptr<RegionReader> make_host_reader(const TensorTable& table, const std::vector<TensorRef>& regions);

}  // namespace sparsecast
