// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sparsecast/codec.hpp"
#include "sparsecast/device.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast {

class JoinedTables;
class PublisherBackend;
struct StridedView;

/// Elements of a tile, or of a part of a tile, and which of them changed: the result of TileDetector::detect.
struct TileView {
  const std::byte* current = nullptr;  ///< New bits of the elements.
  const std::byte* old = nullptr;      ///< Old bits; null when the detector does not know them (masks only).
  std::byte* refresh = nullptr;        ///< Memory in which the encoder stores changed elements' new bits; may be null.
  std::uint32_t changed = 0;           ///< Number of changed elements, whose indices are in TileWorkspace::positions.
  /// Strides of the new bits. Set only by the library's own detectors over strided memory, otherwise null. When it is
  /// set, `current` points to the tensor's first element, and this view gives the positions of the other elements.
  const StridedView* current_view = nullptr;
  /// Strides of `old` and `refresh`, which then point to the tensor's first element; null: contiguous.
  const StridedView* old_view = nullptr;
};

/// Scratch memory of one encoding thread: the positions that a detector found, and room to save old bits.
struct TileWorkspace {
  /// Indices of changed elements, strictly increasing and relative to argument `first` of the detect() call. The 64
  /// spare entries are for vector stores.
  alignas(64) std::uint32_t positions[kTileElems + 64];
  alignas(64) std::byte kept[kTileElems * 8];
};

/// Finds the elements of the trainer's tensors that differ from the elements that receivers hold and, except with a
/// mask, also finds their old bits. Comparisons are of storage bits: a NaN with the same bits is unchanged, and +0 and
/// -0 differ. PublisherOptions::detection chooses the detector of a Publisher, which owns it. Not thread-safe.
class SPARSECAST_API Detector {
 public:
  virtual ~Detector() = default;
  /// Flags elements of `tensor` as changed: ORs ceil(elements / 64) words, one bit an element, least significant first,
  /// into the flags of a detector by mask (Detection::kMask); any other detector throws Error{kUsage}. The words are in
  /// the same memory, host or device, as the tensors. On the host, bits beyond the last element are Error{kUsage}. On a
  /// device the words are 8-byte aligned, such bits are ignored, and the work is enqueued on `cuda_stream` (null: the
  /// default stream): the next publish waits for it, and work that is enqueued later on `cuda_stream` may change the
  /// words. Must not be called during a publish.
  virtual void mark(std::size_t tensor, const std::uint64_t* words, CUstream_st* cuda_stream = nullptr);

  /// Returns true when the detector has the old bits of all elements, and keeps them until the delta is committed or
  /// aborted. `context` positions require this.
  virtual bool has_all_old() const noexcept = 0;
  /// Internal: makes the part of a publisher that works in the memory of the tensors. `tables` and the detector must
  /// outlive it. Throws Error{kUsage | kUnsupported | kTableMismatch}.
  virtual std::unique_ptr<PublisherBackend> make_backend(const JoinedTables& tables, const EncodeOptions& options) = 0;
};

/// How changes are found.
enum class Detection {
  /// Compare with a snapshot of the bits that receivers hold, and update the snapshot where elements changed. An fp32
  /// master (see DetectorOptions) is cast and compared as it is read; only the snapshot keeps the cast.
  kSnapshot,
  /// Cast fp32 masters to the bf16 tensors in place, and detect in the same pass, because receivers hold the bf16 bits
  /// that are about to be overwritten. No snapshot is needed. Publishing performs the cast.
  kFusedCast,
  /// Take the caller's own flags, one bit an element (Detector::mark), for example from an optimizer hook, or the union
  /// of several steps. Elements that are not flagged are not read. A publish takes the flags; a commit clears them, and
  /// an abort restores them. Without old bits only ValueCodec::kRaw can be used, and each publish pays one full digest
  /// of the tensors. A flagged element that did not change is sent all the same.
  kMask,
};

/// How changes are found in the trainer's tensors, which are only read. Each tensor is of the table's dtype, or the
/// fp32 master of a bf16 tensor: receivers get the cast (round to nearest, ties to even; a NaN becomes the quiet NaN of
/// the same sign and upper payload). kFusedCast takes masters only; a tensor whose master has no data must not change.
/// The frames do not depend on the device, on strides, nor on where the snapshot is.
///
/// The trainer's tensors and the caller's snapshot may be views, each with strides of its own; memory between their
/// elements is neither read nor written. On a device a view is read 16 bytes at a time where its innermost run
/// (dimensions that are contiguous together form one run) has a multiple of 16 bytes and a 16-byte aligned start, in
/// both live tensor and snapshot; otherwise it is read element by element. A master that is a view is read 16 bytes at
/// a time where the run is a multiple of 8 elements. A contiguous tensor is read 16 bytes at a time wherever it begins,
/// unless the caller's snapshot of it begins elsewhere modulo 16 bytes.
struct DetectorOptions {
  Detection by = Detection::kSnapshot;
  /// Tensors with the bits that receivers hold, parallel to the table, with its dtypes, and on the same device as the
  /// live tensors. kSnapshot: a snapshot in the caller's memory, whose elements must not overlap and to which only the
  /// detector writes; empty: the detector assumes that receivers hold the current bits of the live tensors, and keeps a
  /// copy of its own. kFusedCast: the bf16 tensors, contiguous, which it overwrites. kMask: empty.
  std::vector<TensorRef> held;
  /// kSnapshot on a device: whether the detector's own copy lies in pinned host memory, for trainers without spare
  /// device memory. The copy is transferred in chunks of device.chunk_bytes, double-buffered, so that one chunk is
  /// transferred while the kernels process the one before; with masters among the tensors, the kernels read the copy in
  /// place. The kernels write changed elements straight back to the copy.
  bool pinned = false;
  /// Options for tensors on a device. The ordinal, unless negative, must be that of the tensors' device.
  DeviceOptions device;
};

/// A detector for host memory, which the encoder calls tile by tile. Programs may implement their own. detect() may be
/// called concurrently for distinct tiles, each with its own workspace. For each delta it is called once for every
/// tile, or once for every part of a tile, one part after another.
class SPARSECAST_API TileDetector : public Detector {
 public:
  /// Returns the preferred number of elements for one detect() call: a divisor of kTileElems and a multiple of 64. A
  /// small part is still in the nearest cache when it is encoded. With less than kTileElems, `current` of a tile's
  /// parts must be contiguous.
  virtual std::uint32_t part() const noexcept { return kTileElems; }
  /// Detects changes in elements [first, first + count) of `tensor`; count <= kTileElems, and first is a multiple of
  /// part(). The view is valid until the workspace is used again.
  virtual TileView detect(std::size_t tensor, std::uint64_t first, std::uint32_t count, TileWorkspace& workspace) = 0;
  /// Returns a tensor with the bits that receivers will hold after this delta, for a full digest. Called only for
  /// detectors that keep no snapshot.
  virtual TensorRef current(std::size_t tensor) const = 0;
  /// Returns the detector's snapshot: tensors with the bits that receivers hold, parallel to the table. When a sync
  /// fails, the inverse delta rolls the snapshot back. Empty when the detector keeps no snapshot: then the failed delta
  /// is joined with the next one.
  virtual std::span<const TensorRef> snapshot() const noexcept { return {}; }
  /// Returns true when `detect` gives old bits, so that every value codec and the incremental digest can be used.
  virtual bool knows_old() const noexcept = 0;
  /// Returns true when detecting replaces the old bits (kFusedCast): an aborted delta must then be joined with the next
  /// one.
  virtual bool consumes_changes() const noexcept { return false; }
  bool has_all_old() const noexcept final { return knows_old() && !consumes_changes(); }
  std::unique_ptr<PublisherBackend> make_backend(const JoinedTables& tables, const EncodeOptions& options) final;
  /// Called once when detect() has run for all tiles of a delta.
  virtual void finish() {}
  /// Called after finish() when the delta was committed.
  virtual void committed() {}
  /// Called after finish() when the delta was aborted.
  virtual void aborted() {}
};

/// Makes a detector that compares the host tensors `current` (new bits) with the host tensors `base` (old bits), both
/// parallel to the table. The caller owns both; neither is written.
SPARSECAST_API std::unique_ptr<TileDetector> make_compare_detector(const TensorTable& table,
                                                                   const std::vector<ConstBytes>& current,
                                                                   const std::vector<ConstBytes>& base);

}  // namespace sparsecast
