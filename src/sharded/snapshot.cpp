// SPDX-License-Identifier: Apache-2.0
#include "sharded/snapshot.hpp"

#include <algorithm>

#include "core/tensor_view.hpp"

namespace sparsecast {
namespace {

/// Returns the parts of `missing` that lie in none of `others`.
std::vector<Box> without(std::vector<Box> missing, const std::vector<Box>& others) {
  for (const Box& other : others) {
    std::vector<Box> left;
    for (const Box& piece : missing) std::ranges::move(subtract(piece, other), std::back_inserter(left));
    missing = std::move(left);
  }
  return missing;
}

/// Returns the place of `box`, which lies in `region`, in memory that is laid out like the region's local tensor.
MemoryBox place_of(const Region& region, const RegionView& view, const Box& box, std::size_t element_bytes) {
  MemoryBox shard{view.first, {}, view.strides, element_bytes};
  for (std::size_t i = 0; i < region.order.size(); ++i) {
    const std::size_t d = region.order[i];
    shard.first += (box.offset[d] - region.box.offset[d]) * static_cast<std::uint64_t>(view.strides[i]);
    shard.extents.push_back(box.extent[d]);
  }
  return shard;
}

}  // namespace

std::vector<Box> subtract(const Box& a, const Box& b) {
  const std::optional<Box> shared = intersect(a, b);
  if (!shared) return {a};
  std::vector<Box> out;
  Box rest = a;
  for (std::size_t d = 0; d < a.extent.size(); ++d) {
    const std::uint64_t begin = shared->offset[d];
    const std::uint64_t end = begin + shared->extent[d];
    const std::uint64_t rest_end = rest.offset[d] + rest.extent[d];
    if (begin > rest.offset[d]) {
      out.push_back(rest);
      out.back().extent[d] = begin - rest.offset[d];
    }
    if (end < rest_end) {
      out.push_back(rest);
      out.back().offset[d] = end;
      out.back().extent[d] = rest_end - end;
    }
    rest.offset[d] = begin;
    rest.extent[d] = end - begin;
  }
  return out;
}

/// Returns the first layer that covers nothing of the route yet.
std::size_t ShardSnapshot::layer_for(const FanoutPlan& plan, const Route& route, const std::vector<RegionView>& views) {
  const auto overlaps = [&](const SnapshotLayer& layer) {
    for (std::size_t p = 0; p < views.size(); ++p) {
      const Box& region = route.regions[p].box;
      const auto found = layer.covered.find({plan.table()[route.regions[p].tensor].name, views[p].local});
      if (found == layer.covered.end()) continue;
      if (std::ranges::any_of(found->second, [&](const Box& box) { return intersect(box, region).has_value(); })) {
        return true;
      }
    }
    return false;
  };
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (!overlaps(layers_[i])) return i;
  }
  layers_.emplace_back().copies.resize(memory_->local().size());
  return layers_.size() - 1;
}

/// Returns memory for a copy of a local tensor, which begins so that a device can compare it with the tensor by
/// vectors.
Allocation ShardSnapshot::allocate_copy(std::uint32_t local) const {
  const std::uint64_t lead = lead_bytes_of(memory_->local()[local], memory_->wire_dtype(local));
  const Allocation all = memory_->memory().allocate(lead + memory_->wire_bytes(local));
  return {all, all.get() + lead};
}

/// Fills in the parts of the region that the layer does not hold: from another layer that holds them, or from the
/// current values of the rank's tensor.
void ShardSnapshot::take(std::size_t layer, const FanoutPlan& plan, const Region& region, const RegionView& view) {
  const TensorSpec& spec = plan.table()[region.tensor];
  const std::size_t size = element_size(spec.dtype);
  Allocation& copy = layers_[layer].copies[view.local];
  if (!copy) copy = allocate_copy(view.local);
  std::vector<Box> missing{region.box};
  const auto take_out = [&](const std::vector<Box>& boxes, const std::byte* from) {
    for (const Box& piece : missing) {
      for (const Box& box : boxes) {
        const std::optional<Box> shared = from != nullptr ? intersect(piece, box) : std::nullopt;
        if (shared) memory_->memory().copy(place_of(region, view, *shared, size), from, copy.get(), false);
      }
    }
    missing = without(std::move(missing), boxes);
  };
  take_out(layers_[layer].sent[{spec.name, view.local}], nullptr);
  for (SnapshotLayer& other : layers_) {
    if (&other != &layers_[layer]) take_out(other.sent[{spec.name, view.local}], other.copies[view.local].get());
  }
  for (const Box& piece : missing) memory_->take(view.local, place_of(region, view, piece, size), copy.get());
}

void ShardSnapshot::cover(const FanoutPlan& plan, int rank) {
  for (SnapshotLayer& layer : layers_) layer.covered.clear();
  routes_.clear();
  for (std::size_t l = 0; l < plan.routes().size(); ++l) {
    const Route& route = plan.routes()[l];
    if (route.source != rank) continue;
    std::vector<RegionView> views = plan.source_views(l);
    const std::size_t layer = layer_for(plan, route, views);
    for (std::size_t p = 0; p < route.regions.size(); ++p) {
      take(layer, plan, route.regions[p], views[p]);
      layers_[layer].covered[{plan.table()[route.regions[p].tensor].name, views[p].local}].push_back(
          route.regions[p].box);
    }
    routes_[l] = {layer, std::move(views)};
  }
}

/// Regions that are no longer sent become stale from here on. If they are sent again, they are read again.
void ShardSnapshot::adopt() {
  for (SnapshotLayer& layer : layers_) layer.sent = layer.covered;
}

std::vector<TensorRef> ShardSnapshot::live(const FanoutPlan& plan, std::size_t route) const {
  return refs_in(plan, route, routes_.at(route).views,
                 [&](std::size_t, std::uint32_t local) { return memory_->local()[local]; });
}

std::vector<TensorRef> ShardSnapshot::held(const FanoutPlan& plan, std::size_t route) const {
  const CoveredRoute& own = routes_.at(route);
  return refs_in(plan, route, own.views, [&](std::size_t, std::uint32_t local) {
    return copy_at(local, layers_[own.layer].copies[local].get());
  });
}

/// Returns a reference to a copy of a local tensor, as receivers hold it.
TensorRef ShardSnapshot::copy_at(std::uint32_t local, std::byte* data) const {
  TensorRef copy;
  copy.data = data;
  copy.dtype = memory_->wire_dtype(local);
  copy.device = memory_->memory().device();
  return copy;
}

/// Returns the local tensor's copy in a layer that holds all of the box, or null.
std::byte* ShardSnapshot::find_whole(const std::string& tensor, const Box& box, std::uint32_t local) {
  for (SnapshotLayer& layer : layers_) {
    if (without({box}, layer.covered[{tensor, local}]).empty()) return layer.copies[local].get();
  }
  return nullptr;
}

Allocation ShardSnapshot::put_together(const FanoutPlan& plan, const Region& region, const RegionView& view) {
  const TensorSpec& spec = plan.table()[region.tensor];
  Allocation out = memory_->memory().allocate(memory_->wire_bytes(view.local));
  for (SnapshotLayer& layer : layers_) {
    for (const Box& box : layer.covered[{spec.name, view.local}]) {
      const std::optional<Box> shared = intersect(region.box, box);
      if (!shared) continue;
      memory_->memory().copy(place_of(region, view, *shared, element_size(spec.dtype)), layer.copies[view.local].get(),
                             out.get(), false);
    }
  }
  return out;
}

std::vector<TensorRef> ShardSnapshot::held_for_anchor(const FanoutPlan& plan, std::size_t route,
                                                      std::vector<Allocation>& scratch) {
  const std::vector<RegionView> views = plan.source_views(route);
  return refs_in(plan, route, views, [&](std::size_t p, std::uint32_t local) {
    const Region& region = plan.routes()[route].regions[p];
    std::byte* const whole = find_whole(plan.table()[region.tensor].name, region.box, local);
    if (whole != nullptr) return copy_at(local, whole);
    return copy_at(local, scratch.emplace_back(put_together(plan, region, views[p])).get());
  });
}

std::uint64_t ShardSnapshot::bytes() const noexcept {
  std::uint64_t total = 0;
  for (const SnapshotLayer& layer : layers_) {
    for (std::size_t t = 0; t < layer.copies.size(); ++t) {
      if (layer.copies[t]) total += memory_->wire_bytes(t);
    }
  }
  return total;
}

}  // namespace sparsecast
