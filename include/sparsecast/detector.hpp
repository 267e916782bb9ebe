// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sparsecast/codec.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/tensor_table.hpp"

namespace sparsecast {

struct StridedView;

/// Result of detection in a tile, or in a part of one, of `count` elements.
struct TileView {
  const std::byte* current = nullptr;  ///< The new bits of its elements.
  const std::byte* old = nullptr;      ///< Their bits before; null when the detector does not know them (Mask alone).
  std::byte* refresh = nullptr;        ///< Memory in which the encoder stores changed elements' new bits; may be null.
  std::uint32_t changed = 0;           ///< Number of entries in TileWorkspace::positions.
  /// Strides of the new bits. Set only by the library's own detectors over strided memory, otherwise null. When it is
  /// set, `current` points to the tensor's first element, and the view gives the positions of the others.
  const StridedView* current_view = nullptr;
  const StridedView* old_view = nullptr;  ///< Strides of `old` and `refresh`, likewise.
};

/// Scratch memory of one encoding thread: the positions that a detector found, and room to save old bits.
struct TileWorkspace {
  /// Indices of changed elements, relative to `first` of the detect() call, strictly increasing. The 64 spare entries
  /// are for vector stores.
  alignas(64) std::uint32_t positions[kTileElems + 64];
  alignas(64) std::byte kept[kTileElems * 8];
};

/// Finds, tile by tile, the elements that differ from what receivers hold, and their old bits. Comparisons are of
/// storage bits: a NaN with the same bits is unchanged, and +0 and -0 differ. detect() may be called concurrently for
/// distinct tiles, each with its own workspace. It is called once a delta for each tile, or one after another for its
/// parts.
class SPARSECAST_API Detector {
 public:
  virtual ~Detector() = default;
  /// Returns the preferred number of elements for one detect() call: a divisor of kTileElems and a multiple of 64. A
  /// small part is still in the nearest cache when it is encoded. With less than kTileElems, `current` of a tile's
  /// parts must be contiguous.
  virtual std::uint32_t part() const noexcept { return kTileElems; }
  /// Detects changes in elements [first, first + count) of `tensor`; count <= kTileElems, and first is a multiple of
  /// part(). The view is valid until the workspace is used again.
  virtual TileView detect(std::size_t tensor, std::uint64_t first, std::uint32_t count, TileWorkspace& workspace) = 0;
  /// Returns the bits that receivers will hold after this delta, for a full digest. Called only for detectors that keep
  /// no snapshot.
  virtual ConstHostTensor current(std::size_t tensor) const = 0;
  /// Returns the elements that receivers hold now, parallel to the table. When a sync fails, the inverse delta rolls
  /// them back. Empty when the detector keeps no snapshot (FusedCast, Mask): then the failed delta is joined with the
  /// next.
  virtual std::span<const HostTensor> snapshot() const noexcept { return {}; }
  /// Returns true when `detect` gives old bits, so that every value codec and the incremental digest can be used.
  virtual bool knows_old() const noexcept = 0;
  /// Returns true when detecting replaces the old bits (FusedCast): an aborted delta must then be joined with the next
  /// one.
  virtual bool consumes_changes() const noexcept { return false; }
  /// Called once when detect() has run for all tiles of a delta. committed() or aborted() follows when the delta's
  /// outcome is known.
  virtual void finish() {}
  virtual void committed() {}
  virtual void aborted() {}
};

/// Compares two sets of tensors that the caller owns; nothing is refreshed. `table` outlives the detector.
SPARSECAST_API std::unique_ptr<Detector> make_compare_detector(const TensorTable& table,
                                                               std::vector<ConstTensorBytes> current,
                                                               std::vector<ConstTensorBytes> base);

/// Makes a detector that copies `live` now (the bytes that receivers hold) and, while it detects, updates that copy
/// where elements changed. Costs one copy of the tensors in host memory.
SPARSECAST_API std::unique_ptr<Detector> make_host_snapshot(const TensorTable& table,
                                                            std::vector<ConstTensorBytes> live);

/// Makes a detector over a snapshot in the caller's memory, which must hold what receivers hold; nothing is copied.
/// Each tensor of `live` and `snapshot` may be a view of larger memory, with strides of its own; the frames are the
/// same as for contiguous tensors. The caller does not write to the snapshot. `table` outlives the detector. Throws
/// Error{kUsage} for tensors that do not fit the table, and a snapshot whose elements overlap.
SPARSECAST_API std::unique_ptr<Detector> make_snapshot_over(const TensorTable& table, std::vector<HostTensor> live,
                                                            std::vector<HostTensor> snapshot);

/// A trainer's source of a tensor: the tensor itself, or the fp32 master of a bf16 tensor, whose cast receivers get.
struct HostSourceTensor {
  ConstHostTensor memory;      ///< Memory that is only read; strides are in elements of `dtype`.
  DType dtype = DType::kBF16;  ///< The table's dtype; or kF32 where the table says kBF16: an fp32 master.
};

/// Makes a *cast snapshot*: like make_snapshot_over, but it also takes fp32 masters. Receivers hold their cast to bf16
/// (rounded as by make_fused_cast). The cast is compared with the snapshot while the masters are read, and stored there
/// only where it differs; no other copy of it is kept. One table may mix masters and tensors of its own dtype. Throws
/// Error{kUsage} also for a dtype that is neither the table's nor that of a master.
SPARSECAST_API std::unique_ptr<Detector> make_cast_snapshot(const TensorTable& table,
                                                            std::vector<HostSourceTensor> live,
                                                            std::vector<HostTensor> snapshot);

/// Makes a detector without a snapshot. It casts fp32 masters to the bf16 tensors in place (round to nearest, ties to
/// even; a NaN becomes the quiet NaN of the same sign and upper payload) and detects in the same pass, because the bf16
/// about to be overwritten is what receivers hold. `masters[i]` has table[i].elements() floats, or is empty: then
/// tensor i must not change. Publishing performs the cast.
SPARSECAST_API std::unique_ptr<Detector> make_fused_cast(const TensorTable& table,
                                                         std::vector<std::span<const float>> masters,
                                                         std::vector<TensorBytes> bf16);

/// Detects changes from the caller's own mask, one bit an element, least significant first (for example from an
/// optimizer hook, or the union of several steps). Elements that are not flagged are not read. A publish takes the
/// flags; a commit clears them, and an abort restores them. Without old bits only `ValueCodec::kRaw` can be used, and
/// each publish pays one full digest of the tensors. A flagged element that did not change is sent all the same.
class SPARSECAST_API MaskDetector : public Detector {
 public:
  /// `table` outlives the detector; the caller owns `live`.
  MaskDetector(const TensorTable& table, const std::vector<ConstTensorBytes>& live);
  ~MaskDetector() override;
  /// ORs `words` (ceil(elements / 64) words) into the flags of `tensor`. Must not be called during a publish.
  void mark(std::size_t tensor, std::span<const std::uint64_t> words);

  TileView detect(std::size_t tensor, std::uint64_t first, std::uint32_t count, TileWorkspace& workspace) override;
  ConstHostTensor current(std::size_t tensor) const override;
  bool knows_old() const noexcept override { return false; }
  void finish() override;
  void committed() override;
  void aborted() override;

 private:
  using Masks = std::vector<std::vector<std::uint64_t>>;

  const TensorTable& table_;
  std::vector<ConstHostTensor> live_;
  Masks flags_;      ///< Elements marked since the last publish.
  Masks in_flight_;  ///< Flags taken by the publish that is pending.
};

}  // namespace sparsecast
