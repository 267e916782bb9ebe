// SPDX-License-Identifier: Apache-2.0

// Overlaps are found by sweeps. Most views of a local tensor are disjoint runs, for which sorting is enough. Views
// whose ranges intersect are mostly columns of a matrix. Cut at the largest stride into rows, each is a rectangle, and
// a sweep over the rows compares only rectangles of neighbouring columns. Pairs whose rectangles intersect are tested
// exactly.

#include "layout/memory_view.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <queue>
#include <span>

#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

using Dim = MemoryView::Dim;
using Pair = std::pair<std::uint32_t, std::uint32_t>;

/// A term of the equation below: a stride times a factor between two bounds.
struct Term {
  std::int64_t stride = 0;
  std::int64_t least = 0;
  std::int64_t most = 0;
};

std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

/// Tests whether two views share an element: whether the difference of their first elements is a difference of their
/// offsets.
class PairTest {
 public:
  PairTest(const MemoryView& a, const MemoryView& b, OverlapBudget& budget) : budget_(budget) {
    std::size_t i = 0;
    std::size_t j = 0;
    while (i < a.rank || j < b.rank) {
      const std::uint64_t stride_a = i < a.rank ? a.dims[i].stride : 0;
      const std::uint64_t stride_b = j < b.rank ? b.dims[j].stride : 0;
      Term term{static_cast<std::int64_t>(std::max(stride_a, stride_b)), 0, 0};
      if (stride_a >= stride_b) term.most = static_cast<std::int64_t>(a.dims[i++].extent - 1);
      if (stride_b >= stride_a) term.least = -static_cast<std::int64_t>(b.dims[j++].extent - 1);
      terms_.push_back(term);
    }
    least_.assign(terms_.size() + 1, 0);
    most_.assign(terms_.size() + 1, 0);
    divisor_.assign(terms_.size() + 1, 0);
    for (std::size_t t = terms_.size(); t-- > 0;) {
      least_[t] = least_[t + 1] + terms_[t].least * terms_[t].stride;
      most_[t] = most_[t + 1] + terms_[t].most * terms_[t].stride;
      divisor_[t] = std::gcd(divisor_[t + 1], terms_[t].stride);
    }
    overlap_ = solve(0, static_cast<std::int64_t>(b.first) - static_cast<std::int64_t>(a.first));
  }

  bool overlap() const { return overlap_; }

 private:
  bool solve(std::size_t t, std::int64_t rest) {
    budget_.spend();
    if (t == terms_.size()) return rest == 0;
    if (rest % divisor_[t] != 0) return false;
    const Term& term = terms_[t];
    const std::int64_t from = std::max(term.least, -floor_div(most_[t + 1] - rest, term.stride));
    const std::int64_t to = std::min(term.most, floor_div(rest - least_[t + 1], term.stride));
    for (std::int64_t k = from; k <= to; ++k) {
      if (solve(t + 1, rest - k * term.stride)) return true;
    }
    return false;
  }

  OverlapBudget& budget_;
  std::vector<Term> terms_;
  std::vector<std::int64_t> least_;
  std::vector<std::int64_t> most_;
  std::vector<std::int64_t> divisor_;
  bool overlap_ = false;
};

/// Rows and columns [begin, end) that contain (part of) a view.
struct Rectangle {
  std::uint64_t row_begin = 0;
  std::uint64_t row_end = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  const MemoryView* view = nullptr;
};

/// Adds the rectangles of a view for rows of `width` elements, counted from element `base`.
void add_rectangles(const MemoryView& view, std::uint64_t base, std::uint64_t width, std::vector<Rectangle>& out) {
  const bool rows = view.rank > 0 && view.dims[0].stride == width;
  const std::uint64_t extent = rows ? view.dims[0].extent : 1;
  // Number of elements from the first to the last in one row.
  const std::uint64_t reach = view.last - view.first + 1 - (rows ? (extent - 1) * width : 0);
  const std::uint64_t row = (view.first - base) / width;
  const std::uint64_t column = (view.first - base) % width;
  const std::uint64_t end = column + reach;
  out.push_back({row, row + extent, column, std::min(end, width), &view});
  if (end <= width) return;
  const std::uint64_t full = end / width;
  if (full > 1) out.push_back({row + 1, row + full - 1 + extent, 0, width, &view});
  if (end % width != 0) out.push_back({row + full, row + full + extent, 0, end % width, &view});
}

/// Rectangles that share a row, ordered by their first column.
class Active {
 public:
  void leave_before(std::uint64_t row) {
    while (!ends_.empty() && ends_.top().first <= row) {
      by_column_.erase(ends_.top().second);
      ends_.pop();
    }
  }
  void enter(const Rectangle& rectangle) {
    widest_ = std::max(widest_, rectangle.end - rectangle.begin);
    ends_.emplace(rectangle.row_end, by_column_.emplace(rectangle.begin, rectangle));
  }
  /// Returns the first view that shares an element with the rectangle's view.
  const MemoryView* overlapping(const Rectangle& rectangle, OverlapBudget& budget) const {
    const std::uint64_t from = rectangle.begin > widest_ ? rectangle.begin - widest_ : 0;
    for (auto it = by_column_.lower_bound(from); it != by_column_.end() && it->first < rectangle.end; ++it) {
      budget.spend();
      const Rectangle& other = it->second;
      if (other.end <= rectangle.begin || other.view == rectangle.view) continue;
      if (PairTest(*other.view, *rectangle.view, budget).overlap()) return other.view;
    }
    return nullptr;
  }

 private:
  using ByColumn = std::multimap<std::uint64_t, Rectangle>;
  using End = std::pair<std::uint64_t, ByColumn::iterator>;
  struct Later {
    bool operator()(const End& a, const End& b) const { return a.first > b.first; }
  };
  ByColumn by_column_;
  std::priority_queue<End, std::vector<End>, Later> ends_;
  std::uint64_t widest_ = 0;
};

/// Finds two views that share an element among views whose ranges intersect.
std::optional<Pair> find_overlap_in(std::span<const MemoryView> views, OverlapBudget& budget) {
  std::uint64_t width = 1;
  for (const MemoryView& view : views) {
    if (view.rank > 0) width = std::max(width, view.dims[0].stride);
  }
  std::vector<Rectangle> rectangles;
  for (const MemoryView& view : views) add_rectangles(view, views.front().first, width, rectangles);
  std::sort(rectangles.begin(), rectangles.end(), [](const Rectangle& a, const Rectangle& b) {
    return std::pair(a.row_begin, a.begin) < std::pair(b.row_begin, b.begin);
  });
  Active active;
  for (const Rectangle& rectangle : rectangles) {
    active.leave_before(rectangle.row_begin);
    if (const MemoryView* other = active.overlapping(rectangle, budget)) {
      return Pair(other->shard, rectangle.view->shard);
    }
    active.enter(rectangle);
  }
  return std::nullopt;
}

}  // namespace

void OverlapBudget::spend() {
  if (steps == 0) {
    throw Error(ErrorCode::kUsage, "the shards are too entangled in memory to tell whether they overlap");
  }
  --steps;
}

std::optional<MemoryView> memory_view(const Shard& shard) {
  std::vector<Dim> dims;
  for (std::size_t d = 0; d < shard.strides.size(); ++d) {
    if (shard.box.extent[d] > 1) dims.push_back({shard.box.extent[d], static_cast<std::uint64_t>(shard.strides[d])});
  }
  std::sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) { return a.stride < b.stride; });
  MemoryView view;
  view.first = view.last = shard.first;
  for (const Dim& dim : dims) {
    if (dim.stride <= view.last - view.first) return std::nullopt;
    view.last += (dim.extent - 1) * dim.stride;
    Dim& faster = view.dims[view.rank == 0 ? 0 : view.rank - 1];
    if (view.rank > 0 && dim.stride == faster.extent * faster.stride) {
      faster.extent *= dim.extent;
    } else {
      view.dims[view.rank++] = dim;
    }
  }
  std::reverse(view.dims.begin(), view.dims.begin() + static_cast<std::ptrdiff_t>(view.rank));
  return view;
}

std::optional<Pair> find_overlap(std::vector<MemoryView> views, OverlapBudget& budget) {
  std::sort(views.begin(), views.end(), [](const MemoryView& a, const MemoryView& b) { return a.first < b.first; });
  for (std::size_t begin = 0; begin < views.size();) {
    std::uint64_t last = views[begin].last;
    std::size_t end = begin + 1;
    for (; end < views.size() && views[end].first <= last; ++end) last = std::max(last, views[end].last);
    if (end - begin > 1) {
      if (auto found = find_overlap_in(std::span(views).subspan(begin, end - begin), budget)) return found;
    }
    begin = end;
  }
  return std::nullopt;
}

}  // namespace sparsecast
