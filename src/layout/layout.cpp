// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "core/utf8.hpp"
#include "layout/layout_bytes.hpp"
#include "layout/local_tensors.hpp"
#include "layout/memory_view.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

std::uint64_t Box::elements() const noexcept {
  std::uint64_t product = 1;
  for (const std::uint64_t size : extent) {
    if (size == 0) return 0;
  }
  for (const std::uint64_t size : extent) {
    // Boxes that are not validated yet may have any size.
    if (size > std::numeric_limits<std::uint64_t>::max() / product) return std::numeric_limits<std::uint64_t>::max();
    product *= size;
  }
  return product;
}

bool Box::contains(const Box& other) const noexcept {
  if (offset.size() != other.offset.size()) return false;
  for (std::size_t d = 0; d < offset.size(); ++d) {
    if (other.offset[d] < offset[d] || other.offset[d] + other.extent[d] > offset[d] + extent[d]) return false;
  }
  return true;
}

Box whole_box(const std::vector<std::uint64_t>& shape) { return {std::vector<std::uint64_t>(shape.size(), 0), shape}; }

std::optional<Box> intersect(const Box& a, const Box& b) {
  if (a.offset.size() != b.offset.size()) return std::nullopt;
  Box shared;
  shared.offset.resize(a.offset.size());
  shared.extent.resize(a.offset.size());
  for (std::size_t d = 0; d < a.offset.size(); ++d) {
    const std::uint64_t begin = std::max(a.offset[d], b.offset[d]);
    const std::uint64_t end = std::min(a.offset[d] + a.extent[d], b.offset[d] + b.extent[d]);
    if (begin >= end) return std::nullopt;
    shared.offset[d] = begin;
    shared.extent[d] = end - begin;
  }
  return shared;
}

std::string to_string(const Box& box) {
  std::string text = "[";
  // Errors print boxes that are not validated, which may have different numbers of offsets and extents.
  for (std::size_t d = 0; d < std::min(box.offset.size(), box.extent.size()); ++d) {
    text += fmt::format("{}{}:{}", d == 0 ? "" : ",", box.offset[d], box.offset[d] + box.extent[d]);
  }
  return text + "]";
}

namespace {

constexpr std::size_t kMaxNameBytes = 0xFFFF;

std::string tied_context(const TiedTensor& tie) {
  return fmt::format("tie of '{}' to '{}'", excerpt(tie.alias), excerpt(tie.original));
}

/// Checks the rules for a single rank.
class RankCheck {
 public:
  RankCheck(const TensorTable& table, std::span<const std::uint32_t> originals, const RankLayout& rank,
            std::size_t index, OverlapBudget& budget)
      : table_(table), originals_(originals), rank_(rank), index_(index), budget_(budget) {}

  void run() {
    if (rank_.node.size() > kMaxNameBytes || !is_utf8(rank_.node)) {
      throw Error(ErrorCode::kUsage, "the node's name is too long or not UTF-8", fmt::format("rank {}", index_));
    }
    for (const LocalTensor& local : rank_.tensors) check_local(local);
    std::vector<MemoryView> views;
    views.reserve(rank_.shards.size());
    for (std::uint32_t s = 0; s < rank_.shards.size(); ++s) {
      const std::string fault = find_fault(rank_.shards[s], s, views);
      if (!fault.empty()) fail(fault, s);
    }
    // Views are in the order of their shards, so sorting the views by local tensor also groups the shards.
    std::sort(views.begin(), views.end(), [this](const MemoryView& a, const MemoryView& b) {
      return std::tuple(local_of(a), a.first, a.dims, a.shard) < std::tuple(local_of(b), b.first, b.dims, b.shard);
    });
    for (std::size_t begin = 0; begin < views.size();) {
      std::size_t end = begin + 1;
      while (end < views.size() && local_of(views[end]) == local_of(views[begin])) ++end;
      check_overlaps(std::span(views).subspan(begin, end - begin));
      begin = end;
    }
  }

 private:
  std::uint32_t local_of(const MemoryView& view) const { return rank_.shards[view.shard].local; }

  void check_local(const LocalTensor& local) const {
    std::string fault;
    if (local.name.empty() || local.name.size() > kMaxNameBytes) fault = "a name of no or too many bytes";
    if (!is_utf8(local.name)) fault = "a name that is not UTF-8";
    if (!dtype_from_code(static_cast<std::uint8_t>(local.dtype))) fault = "an unknown dtype";
    if (local.elements > TensorTable::kMaxElements) fault = "more than 2^46 elements";
    if (!fault.empty()) {
      throw Error(ErrorCode::kUsage, fault, fmt::format("rank {}: local tensor '{}'", index_, excerpt(local.name)));
    }
  }

  [[noreturn]] void fail(const std::string& fault, std::uint32_t s) const {
    const Shard& shard = rank_.shards[s];
    std::string context = fmt::format("rank {}: shard {}", index_, s);
    if (shard.tensor < table_.size()) {
      context += fmt::format(": tensor '{}' {}", excerpt(table_[shard.tensor].name), to_string(shard.box));
    }
    if (shard.local < rank_.tensors.size()) {
      context += fmt::format(" in local tensor '{}'", excerpt(rank_.tensors[shard.local].name));
    }
    throw Error(ErrorCode::kUsage, fault, context);
  }

  /// Returns the first rule that the shard breaks on its own. If there is none, adds the shard's view and returns an
  /// empty string.
  std::string find_fault(const Shard& shard, std::uint32_t s, std::vector<MemoryView>& views) const {
    if (shard.tensor >= table_.size()) return fmt::format("tensor {} of {}", shard.tensor, table_.size());
    if (shard.local >= rank_.tensors.size()) {
      return fmt::format("local tensor {} of {}", shard.local, rank_.tensors.size());
    }
    const TensorSpec& spec = table_[shard.tensor];
    const LocalTensor& local = rank_.tensors[shard.local];
    const std::size_t dims = spec.shape.size();
    if (dims > kMaxLayoutDims) return fmt::format("{} dimensions; a layout has at most {}", dims, kMaxLayoutDims);
    if (shard.box.offset.size() != dims || shard.box.extent.size() != dims || shard.strides.size() != dims) {
      return fmt::format("offsets, extents or strides are not {}, as the tensor has dimensions", dims);
    }
    if (spec.dtype != local.dtype) {
      return fmt::format("the tensor is {}, the local one {}", to_string(spec.dtype), to_string(local.dtype));
    }
    std::uint64_t last = shard.first;
    for (std::size_t d = 0; d < dims; ++d) {
      const std::uint64_t extent = shard.box.extent[d];
      if (extent == 0) return "the box is empty";
      if (extent > spec.shape[d] || shard.box.offset[d] > spec.shape[d] - extent) {
        return fmt::format("the box is outside the tensor's shape [{}]", fmt::join(spec.shape, ", "));
      }
      if (shard.strides[d] < 0) return "a stride is negative";
      const auto stride = static_cast<std::uint64_t>(shard.strides[d]);
      if (last >= local.elements || (extent > 1 && stride > (local.elements - 1 - last) / (extent - 1))) break;
      last += (extent - 1) * stride;
      if (d + 1 == dims) return keep_view(shard, s, views);
    }
    if (dims == 0 && last < local.elements) return keep_view(shard, s, views);
    return fmt::format("the box ends outside the {} elements of the local tensor", local.elements);
  }

  static std::string keep_view(const Shard& shard, std::uint32_t s, std::vector<MemoryView>& views) {
    std::optional<MemoryView> view = memory_view(shard);
    if (!view) return "the strides do not nest: elements would share memory";
    view->shard = s;
    views.push_back(*view);
    return {};
  }

  /// Checks the views of one local tensor, sorted by memory, for overlaps.
  void check_overlaps(std::span<const MemoryView> views) {
    std::vector<MemoryView> distinct;
    distinct.reserve(views.size());
    for (const MemoryView& view : views) {
      if (!distinct.empty() && distinct.back().same_memory(view)) {
        check_same_elements(distinct.back().shard, view.shard);
      } else {
        distinct.push_back(view);
      }
    }
    try {
      if (const auto pair = find_overlap(std::move(distinct), budget_)) {
        fail(fmt::format("its memory overlaps that of shard {}, tensor '{}' {}", pair->first,
                         excerpt(name_of(pair->first)), to_string(rank_.shards[pair->first].box)),
             pair->second);
      }
    } catch (const Error& error) {
      throw error.context().empty() ? error.within(fmt::format("rank {}", index_)) : error;
    }
  }

  const std::string& name_of(std::uint32_t s) const { return table_[rank_.shards[s].tensor].name; }

  /// Checks two shards on the same memory: they must be the same elements of tied tensors.
  void check_same_elements(std::uint32_t first, std::uint32_t second) const {
    const Shard& a = rank_.shards[first];
    const Shard& b = rank_.shards[second];
    if (a.tensor == b.tensor && a.box == b.box) fail(fmt::format("it repeats shard {}", first), second);
    bool same = originals_[a.tensor] == originals_[b.tensor] && a.box == b.box;
    for (std::size_t d = 0; same && d < a.strides.size(); ++d) {
      same = a.box.extent[d] == 1 || a.strides[d] == b.strides[d];
    }
    if (same) return;
    fail(fmt::format("shard {}, tensor '{}' {}, has the same memory, but is not tied to the same elements", first,
                     excerpt(name_of(first)), to_string(a.box)),
         second);
  }

  const TensorTable& table_;
  std::span<const std::uint32_t> originals_;
  const RankLayout& rank_;
  std::size_t index_;
  OverlapBudget& budget_;
};

/// Returns, for each tensor, the original at the end of its chain of ties. Throws Error{kUsage} for invalid ties (see
/// Layout).
std::vector<std::uint32_t> resolve_ties(const TensorTable& table, std::span<const TiedTensor> ties) {
  std::vector<std::uint32_t> next(table.size());
  std::iota(next.begin(), next.end(), 0u);
  for (const TiedTensor& tie : ties) {
    const auto alias = table.find(tie.alias);
    const auto original = table.find(tie.original);
    std::string fault;
    if (!alias || !original) {
      fault = fmt::format("there is no tensor '{}'", excerpt(alias ? tie.original : tie.alias));
    } else if (*alias == *original) {
      fault = "a tensor is tied to itself";
    } else if (next[*alias] != *alias) {
      fault = "the alias is tied twice";
    } else if (table[*alias].shape != table[*original].shape || table[*alias].dtype != table[*original].dtype) {
      fault = "the two differ in shape or dtype";
    }
    if (!fault.empty()) throw Error(ErrorCode::kUsage, fault, tied_context(tie));
    next[*alias] = static_cast<std::uint32_t>(*original);
  }
  std::vector<std::uint32_t> ends(table.size());
  std::vector<bool> known(table.size(), false);
  std::vector<std::uint32_t> path;
  for (const TiedTensor& tie : ties) {
    std::size_t at = *table.find(tie.alias);
    path.clear();
    while (!known[at] && next[at] != at) {
      path.push_back(static_cast<std::uint32_t>(at));
      if (path.size() > ties.size()) throw Error(ErrorCode::kUsage, "ties in a circle", tied_context(tie));
      at = next[at];
    }
    const std::uint32_t end = known[at] ? ends[at] : static_cast<std::uint32_t>(at);
    for (const std::uint32_t tensor : path) {
      ends[tensor] = end;
      known[tensor] = true;
    }
  }
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (!known[i]) ends[i] = static_cast<std::uint32_t>(i);
  }
  return ends;
}

/// Throws Error{kUsage} unless every rank is as Layout documents it.
void validate_ranks(const TensorTable& table, std::span<const RankLayout> ranks,
                    std::span<const std::uint32_t> originals) {
  if (ranks.size() > Layout::kMaxRanks) {
    throw Error(ErrorCode::kUsage, fmt::format("{} ranks are over the limit of {}", ranks.size(), Layout::kMaxRanks));
  }
  std::size_t shards = 0;
  std::size_t locals = 0;
  for (const RankLayout& rank : ranks) {
    shards += rank.shards.size();
    locals += rank.tensors.size();
  }
  if (shards > Layout::kMaxShards || locals > Layout::kMaxShards) {
    throw Error(ErrorCode::kUsage, fmt::format("{} shards in {} local tensors are over the limit of {}", shards, locals,
                                               Layout::kMaxShards));
  }
  OverlapBudget budget;
  for (std::size_t r = 0; r < ranks.size(); ++r) RankCheck(table, originals, ranks[r], r, budget).run();
}

}  // namespace

Layout::Layout(TensorTable table, std::vector<RankLayout> ranks, std::vector<TiedTensor> ties)
    : table_(std::move(table)), ranks_(std::move(ranks)), ties_(std::move(ties)) {
  originals_ = resolve_ties(table_, ties_);
  validate_ranks(table_, ranks_, originals_);
  hash_ = xxh3_128(pack_layout(*this));
}

Bytes Layout::serialize() const { return compress_layout(pack_layout(*this)); }

Layout Layout::parse(ConstBytes bytes) { return unpack_layout(decompress_layout(bytes)); }

const std::vector<LocalTensor>& local_tensors(const Layout& layout, std::size_t rank, std::size_t given) {
  if (rank >= layout.ranks().size()) {
    throw Error(ErrorCode::kUsage, fmt::format("rank {} of a layout of {}", rank, layout.ranks().size()));
  }
  const std::vector<LocalTensor>& tensors = layout.ranks()[rank].tensors;
  if (given != tensors.size()) {
    throw Error(ErrorCode::kUsage, fmt::format("{} local tensors for a layout of {}", given, tensors.size()),
                fmt::format("rank {}", rank));
  }
  return tensors;
}

namespace {

/// Returns references to the local tensors of a rank. data_of(i) must return the address of local tensor i.
template <class DataOf>
std::vector<TensorRef> local_refs(const Layout& layout, std::size_t rank, std::size_t given, int device,
                                  const DataOf& data_of) {
  const std::vector<LocalTensor>& tensors = local_tensors(layout, rank, given);
  std::vector<TensorRef> refs;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    refs.push_back({data_of(t), tensors[t].dtype, {tensors[t].elements}, {}, device});
  }
  return refs;
}

}  // namespace

std::vector<TensorRef> refs_to(const Layout& layout, std::size_t rank, const std::vector<MutableBytes>& tensors) {
  std::vector<TensorRef> refs =
      local_refs(layout, rank, tensors.size(), kHostMemory, [&](std::size_t t) { return tensors[t].data(); });
  for (std::size_t t = 0; t < refs.size(); ++t) {
    if (tensors[t].size() == refs[t].bytes()) continue;
    throw Error(ErrorCode::kUsage, fmt::format("{} bytes for {}", tensors[t].size(), refs[t].bytes()),
                fmt::format("rank {}: local tensor '{}'", rank, layout.ranks()[rank].tensors[t].name));
  }
  return refs;
}

std::vector<TensorRef> refs_to(const Layout& layout, std::size_t rank, const std::vector<void*>& d_tensors,
                               int device) {
  return local_refs(layout, rank, d_tensors.size(), device,
                    [&](std::size_t t) { return static_cast<std::byte*>(d_tensors[t]); });
}

}  // namespace sparsecast
