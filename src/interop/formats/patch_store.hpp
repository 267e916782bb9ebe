#pragma once

#include <vector>

#include "interop/formats/scratch.hpp"
#include "sparsecast/safetensors.hpp"
#include "sparsecast/tensor_patch.hpp"

namespace sparsecast {

/// Throws Error{kCorrupt | kUnsupported} unless the indices of the patch are strictly increasing and in the tensor.
/// `count` and the spans' sizes agree already.
void check_patch(const TensorTable& table, const TensorPatch& patch);

/// The patches of one version, one a tensor, kept until all are there. Whatever their source, they are checked on the
/// way in: what comes out is true of the table.
class PatchStore {
 public:
  /// `table` and `scratch` outlive the store.
  PatchStore(const TensorTable& table, ScratchDirectory& scratch) : table_(table), spool_(scratch) {}

  /// Copies the patch; one without elements is dropped. Throws Error{kCorrupt} when it is not increasing, reaches
  /// beyond the tensor, or is the tensor's second.
  void add(const TensorPatch& patch);
  PatchSink sink() {
    return [this](const TensorPatch& patch) { add(patch); };
  }
  /// All patches in the order of the table; valid while the store lives. Nothing is added after it.
  const std::vector<TensorPatch>& patches();
  std::uint64_t changed() const noexcept { return changed_; }

 private:
  struct Place {
    std::uint64_t indices = 0;
    std::uint64_t values = 0;
  };

  const TensorTable& table_;
  Spool spool_;
  std::vector<TensorPatch> patches_;
  std::vector<Place> places_;  ///< Parallel to patches_ until patches() is called.
  std::vector<bool> seen_;
  std::uint64_t changed_ = 0;
};

}  // namespace sparsecast
