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

/// What a detector found in a tile, or a part of one, of `count` elements.
struct TileView {
  const std::byte* current = nullptr;  ///< The new bits of its elements.
  const std::byte* old = nullptr;      ///< Their bits before; null when the detector does not know them (Mask alone).
  std::byte* refresh = nullptr;        ///< Where the encoder stores the new bits of what changed; may be null.
  std::uint32_t changed = 0;           ///< Entries of TileWorkspace::positions.
  /// Of the library's own detectors over strided memory, else null: `current` is then that of the tensor's first
  /// element, and this says where the others lie.
  const StridedView* current_view = nullptr;
  const StridedView* old_view = nullptr;  ///< The same for `old` and `refresh`.
};

/// Scratch of one encoding thread: the positions a detector found, and room for one that has to keep old bits aside.
struct TileWorkspace {
  /// Changed elements, relative to the first one asked for, strictly increasing. The slack is for vector stores.
  alignas(64) std::uint32_t positions[kTileElems + 64];
  alignas(64) std::byte kept[kTileElems * 8];
};

/// Answers, tile by tile, "which elements differ from what receivers hold, and what were they". Comparisons are of
/// storage bits: a NaN that stays is unchanged, +0 and -0 differ. Distinct tiles may be asked for concurrently,
/// each with its own workspace; each tile once a delta, its parts one after another.
class SPARSECAST_API Detector {
 public:
  virtual ~Detector() = default;
  /// How many elements it is best asked for at a time, a divisor of kTileElems and multiple of 64: what is coded soon
  /// after it was read is still in the nearest cache. With less than kTileElems, `current` of a tile's parts must be
  /// contiguous.
  virtual std::uint32_t part() const noexcept { return kTileElems; }
  /// Elements [first, first + count) of `tensor`; count <= kTileElems, first a multiple of part().
  /// The view is valid until the workspace is used again.
  virtual TileView detect(std::size_t tensor, std::uint64_t first, std::uint32_t count, TileWorkspace& workspace) = 0;
  /// The bits that the next receivers' state will have, for a full digest. Asked only of detectors that keep no
  /// snapshot.
  virtual ConstHostTensor current(std::size_t tensor) const = 0;
  /// The elements that receivers hold now, parallel to the table, to be rolled back by the inverse delta when a sync
  /// fails; empty when this detector keeps none (FusedCast, Mask): then the failed delta is joined with the next.
  virtual std::span<const HostTensor> snapshot() const noexcept { return {}; }
  /// True when `detect` gives old bits, so that every value codec and the incremental digest can be used.
  virtual bool knows_old() const noexcept = 0;
  /// True when detecting replaces the old bits (FusedCast): an aborted delta must then be joined with the next one.
  virtual bool consumes_changes() const noexcept { return false; }
  /// Called once after all tiles of a delta were asked for, and when that delta's fate is known.
  virtual void finish() {}
  virtual void committed() {}
  virtual void aborted() {}
};

/// Compares two sets of tensors that the caller owns; nothing is refreshed. `table` outlives the detector.
SPARSECAST_API std::unique_ptr<Detector> make_compare_detector(const TensorTable& table,
                                                               std::vector<ConstTensorBytes> current,
                                                               std::vector<ConstTensorBytes> base);

/// Owns a copy of `live` taken now (the bytes receivers hold), and refreshes it only where something changed, in the
/// same pass. Costs one copy of the tensors in host memory.
SPARSECAST_API std::unique_ptr<Detector> make_host_snapshot(const TensorTable& table,
                                                            std::vector<ConstTensorBytes> live);

/// The same with a snapshot in the caller's memory, which holds what receivers hold; nothing is copied. Each tensor of
/// either may be a view of larger memory, with strides of its own; frames are those of contiguous tensors. Between
/// publishes the caller leaves the snapshot alone. `table` outlives the detector. Throws Error{kUsage} for tensors that
/// do not fit the table, and a snapshot whose elements overlap.
SPARSECAST_API std::unique_ptr<Detector> make_snapshot_over(const TensorTable& table, std::vector<HostTensor> live,
                                                            std::vector<HostTensor> snapshot);

/// What a trainer has of a tensor: its own bits, or the fp32 master of a bf16 tensor, of which receivers get the cast.
struct HostSourceTensor {
  ConstHostTensor memory;      ///< With strides in elements of `dtype`. Only read.
  DType dtype = DType::kBF16;  ///< That of the table, or kF32 where the table says kBF16: a master.
};

/// A *cast snapshot*: make_snapshot_over that takes fp32 masters, too. What receivers hold of those is their cast to
/// bf16 (rounded as by make_fused_cast), which is compared with the snapshot while the masters are read, and stored
/// there only where it differs: no other copy of the cast is kept. One table may have masters and tensors as they are.
/// Throws Error{kUsage} also for a dtype that is neither the table's nor that of a master.
SPARSECAST_API std::unique_ptr<Detector> make_cast_snapshot(const TensorTable& table,
                                                            std::vector<HostSourceTensor> live,
                                                            std::vector<HostTensor> snapshot);

/// No snapshot: casts fp32 masters to the bf16 tensors in place (round to nearest, ties to even; a NaN becomes the
/// quiet NaN of the same sign and upper payload) and detects in the same pass, because the bf16 about to be
/// overwritten is what receivers hold. `masters[i]` has table[i].elements() floats, or is empty: then tensor i must
/// not change. Publishing performs the cast.
SPARSECAST_API std::unique_ptr<Detector> make_fused_cast(const TensorTable& table,
                                                         std::vector<std::span<const float>> masters,
                                                         std::vector<TensorBytes> bf16);

/// A caller's own change mask, one bit an element, least significant first (an optimizer hook's, or the union of
/// several steps'); elements not flagged are not read. A publish takes the flags; a commit forgets them, an abort
/// brings them back. Without old bits only `ValueCodec::kRaw` can be used, and each publish pays one full digest of the
/// tensors. A flagged element that did not change is sent all the same.
class SPARSECAST_API MaskDetector : public Detector {
 public:
  /// `table` outlives the detector; the caller owns `live`.
  MaskDetector(const TensorTable& table, const std::vector<ConstTensorBytes>& live);
  ~MaskDetector() override;
  /// Ors `words` (ceil(elements / 64) words) into the flags of `tensor`. Not during a publish.
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
  Masks flags_;      ///< Marked since the last publish.
  Masks in_flight_;  ///< Taken by the publish whose fate is open.
};

}  // namespace sparsecast
