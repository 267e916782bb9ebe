// SPDX-License-Identifier: Apache-2.0
#pragma once

// A rank's local tensors, and the memory that they are in.

#include <atomic>
#include <memory>
#include <vector>

#include "endpoint/publisher_state.hpp"
#include "endpoint/subscriber_state.hpp"
#include "memory/memory_backend.hpp"
#include "sparsecast/fanout_plan.hpp"
#include "sparsecast/layout.hpp"

namespace sparsecast {

/// Returns a reference to each region of a route. `views` says where the regions lie in the rank's local tensors.
/// base_of(i, local) returns a reference to the buffer that stands for local tensor `local` when region i is referred
/// to; only its data, dtype and device are read.
template <class BaseOf>
std::vector<TensorRef> refs_in(const FanoutPlan& plan, std::size_t route, const std::vector<RegionView>& views,
                               const BaseOf& base_of) {
  std::vector<TensorRef> out;
  const std::vector<Region>& regions = plan.routes()[route].regions;
  for (std::size_t p = 0; p < regions.size(); ++p) {
    TensorRef ref = base_of(p, views[p].local);
    if (ref.data != nullptr) ref.data += views[p].first * element_size(ref.dtype);
    ref.shape.clear();  // In the order of the source's memory, as the strides of the view and the table are.
    for (const std::uint8_t d : regions[p].order) ref.shape.push_back(regions[p].box.extent[d]);
    ref.strides = views[p].strides;
    out.push_back(std::move(ref));
  }
  return out;
}

/// The local tensors of one rank, and the memory that they lie in.
class ShardMemory {
 public:
  /// Takes the rank's local tensors, which lie in `memory` and have been checked, and the dtypes that the layout gives
  /// them, parallel to `local`.
  ShardMemory(std::vector<TensorRef> local, std::vector<DType> dtypes, std::shared_ptr<MemoryBackend> memory)
      : local_(std::move(local)), dtypes_(std::move(dtypes)), memory_(std::move(memory)) {}

  /// Returns the rank's local tensors: of the layout's dtypes, or fp32 masters where the layout has bf16.
  const std::vector<TensorRef>& local() const noexcept { return local_; }
  /// Returns the dtype of local tensor number `local` in the layout, which receivers hold.
  DType wire_dtype(std::size_t local) const { return dtypes_[local]; }
  /// Returns true when local tensor number `local` holds fp32 masters. Receivers then get its values cast to bf16.
  bool is_master(std::size_t local) const { return local_[local].dtype != dtypes_[local]; }
  /// Returns the size in bytes of a local tensor in the dtype that receivers hold.
  std::uint64_t wire_bytes(std::size_t local) const;
  MemoryBackend& memory() const noexcept { return *memory_; }

  /// Returns true when an anchor has written to this memory, even a single byte, since the last verified version. May
  /// be called in any thread.
  bool anchor_begun() const noexcept { return anchor_begun_; }
  void begin_anchor() noexcept { anchor_begun_ = true; }
  void end_anchor() noexcept { anchor_begun_ = false; }

  /// Writes the current values of the elements of `box` of a local tensor to `to`, which is memory laid out like the
  /// tensor. The values are written as receivers get them: masters are cast.
  void take(std::size_t local, const MemoryBox& box, std::byte* to) const {
    is_master(local) ? memory_->cast(box, local_[local].data, to) : memory_->copy(box, local_[local].data, to, true);
  }

  /// Creates a publisher with one stream for each route; `tables` joins the tables of the routes. `live` are the
  /// current tensors, and `held` their copies in the snapshot; both are parallel to the joined table.
  std::unique_ptr<PublisherState> make_publisher(JoinedTables tables, std::vector<TensorRef> live,
                                                 std::vector<TensorRef> held, const PublisherOptions& options) const;
  /// Creates a subscriber with one stream for each table of `tables`. `live` are the tensors that it updates, parallel
  /// to the joined table.
  std::unique_ptr<SubscriberState> make_subscriber(const JoinedTables& tables, std::vector<TensorRef> live,
                                                   const SubscriberOptions& options) const;

 private:
  std::vector<TensorRef> local_;
  std::vector<DType> dtypes_;  ///< Dtypes of the layout, parallel to `local_`.
  std::shared_ptr<MemoryBackend> memory_;
  std::atomic<bool> anchor_begun_ = false;
};

/// Creates the memory of the local tensors of rank `rank`. `local` is parallel to RankLayout::tensors. If `masters` is
/// true, tensors may be fp32 where the layout has bf16. If `pinned_snapshot` is true, copies of device tensors lie in
/// pinned host memory, which the device can access; for host tensors that is Error{kUsage}. Throws Error{kUsage},
/// naming the tensor, for a tensor that does not fit the layout; Error{kUsage} for a stream that is another one on each
/// thread; and Error{kUnsupported} for device tensors in a build without the device backend.
std::shared_ptr<ShardMemory> make_shard_memory(const Layout& layout, std::size_t rank, std::vector<TensorRef> local,
                                               bool masters, const DeviceOptions& device = {},
                                               bool pinned_snapshot = false);

}  // namespace sparsecast
