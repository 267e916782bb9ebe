// SPDX-License-Identifier: Apache-2.0
#pragma once

// A staged delta as NaN-masked tensors (sparsecast/nan_masked.hpp): the new values are not written into the live
// tensors, but into separate tensors of full shape, which the engine's own loader reads.

#include <cstdint>
#include <span>
#include <vector>

#include "codec/apply.hpp"
#include "core/strided_view.hpp"

namespace sparsecast {

/// A delta in the form of NaN-masked tensors. The constructor refuses changes that NaN-masked tensors cannot express,
/// before anything is written. A block may list elements that do not change, also NaNs. That is no problem when the
/// live bits are known: a masked copy leaves such elements as they are. Without live bits, an unchanged NaN cannot be
/// told from a change, so every NaN is refused.
class NanMaskedDelta {
 public:
  /// `frames` are all frames of the delta, in order of sequence and validated by validate_block. `live` are the tensors
  /// before the delta, parallel to the table and only read. A live tensor may have no data (a null pointer), so that
  /// its bits are unknown; only `raw` deltas allow this. All arguments must outlive this object, and the live tensors
  /// must hold the base version until the last expand(). With kInverse, the tensors lead from the version of the delta
  /// back to its base. Throws Error{kUnsupported} that names a tensor whose dtype has no NaNs, or the element that
  /// would become a NaN; {kUsage} when live tensors do not fit the table, when an `xor` or `ulp` delta changes a tensor
  /// without live data, or when a `raw` delta is to be inverted.
  NanMaskedDelta(const TensorTable& table, const std::vector<const FrameReader*>& frames, std::vector<TensorRef> live,
                 Direction direction, int threads = 1);

  /// Returns the indices of the tensors that the delta changes, ascending. Only these need to be loaded.
  const std::vector<std::size_t>& tensors() const noexcept { return tensors_; }
  /// Returns, for each tensor of the table, the change of its digest when the loader has written all new values; zero
  /// for a tensor whose live bits are unknown.
  const std::vector<StateDigest>& digest_changes() const noexcept { return changes_; }

  /// Fills `out`, table[tensor].bytes() bytes at any alignment, with the new values of the elements that the delta
  /// names, and with NaNs elsewhere.
  void expand(std::size_t tensor, MutableBytes out) const;

 private:
  /// Consecutive blocks [begin, end) of one tensor in one frame.
  struct Run {
    const FrameReader* frame = nullptr;
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  void find_runs(const std::vector<const FrameReader*>& frames);
  template <class T, class Visit>
  void visit_run(const Run& run, std::size_t tensor, ApplyScratch& scratch, const Visit& visit) const;
  StateDigest check_run(const Run& run, std::size_t tensor, ApplyScratch& scratch) const;

  const TensorTable& table_;
  std::vector<TensorRef> live_;
  std::vector<StridedView> views_;  ///< View of each live tensor; used only for strided tensors.
  bool inverse_ = false;
  int threads_ = 1;
  std::vector<std::vector<Run>> runs_;  ///< Runs of each tensor, by index in the table.
  std::vector<std::size_t> tensors_;
  std::vector<StateDigest> changes_;
};

}  // namespace sparsecast
