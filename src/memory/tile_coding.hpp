// SPDX-License-Identifier: Apache-2.0
#pragma once

// Turns the changed elements that a detector found in a part of a tile into positions within a block and coded words.
// Refreshes the snapshot and sums the digest in the same pass.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "codec/codec_common.hpp"
#include "codec/word_kernels.hpp"
#include "core/digest_changes.hpp"
#include "core/tensor_view.hpp"
#include "core/word.hpp"
#include "sparsecast/detector.hpp"

namespace sparsecast {

struct TileContext {
  std::uint64_t first = 0;  ///< Index, in the tensor, of the view's first element.
  /// Number that is added to a position within the view to get the position within the block.
  std::uint32_t base = 0;
  const DigestIndex* index = nullptr;
  UlpOrder order = UlpOrder::kInteger;
};

/// Maps the positions of elements in a view to addresses in live memory, offsets in the snapshot and indices in the
/// digest, when the elements are contiguous in all three.
class FlatElements {
 public:
  FlatElements(const TileView& view, const TileContext& tile)
      : current_(view.current), first_(tile.index->first + tile.first) {}

  template <class T>
  const std::byte* current(std::uint32_t at) const {
    return current_ + at * sizeof(T);
  }
  template <class T>
  std::int64_t old_offset(std::uint32_t at) const {
    return static_cast<std::int64_t>(at * sizeof(T));
  }
  std::uint64_t index(std::uint32_t at) const { return first_ + at; }

 private:
  const std::byte* current_;
  std::uint64_t first_;
};

/// Does the same as FlatElements for elements that are strided in live memory, in the snapshot or in the digest.
class StridedElements {
 public:
  StridedElements(const TileView& view, const TileContext& tile)
      : current_(view.current),
        // Without a view, the pointer points to the first element of this part of the tile.
        current_first_(view.current_view != nullptr ? tile.first : 0),
        old_first_(view.old_view != nullptr ? tile.first : 0),
        first_(tile.first),
        digest_first_(tile.index->first),
        current_walk_(view.current_view),
        old_walk_(view.old_view),
        index_walk_(tile.index->walk()) {}

  template <class T>
  const std::byte* current(std::uint32_t at) {
    return current_ + current_walk_.offset(current_first_ + at) * static_cast<std::int64_t>(sizeof(T));
  }
  template <class T>
  std::int64_t old_offset(std::uint32_t at) {
    return old_walk_.offset(old_first_ + at) * static_cast<std::int64_t>(sizeof(T));
  }
  std::uint64_t index(std::uint32_t at) {
    return digest_first_ + static_cast<std::uint64_t>(index_walk_.offset(first_ + at));
  }

 private:
  const std::byte* current_;
  std::uint64_t current_first_;
  std::uint64_t old_first_;
  std::uint64_t first_;
  std::uint64_t digest_first_;
  ElementWalk current_walk_;
  ElementWalk old_walk_;
  ElementWalk index_walk_;
};

/// Writes to `coded` the coded words of `count` changed elements, whose positions within the view are in `found`. With
/// kRefresh, also writes their new bits to the snapshot. With kDigest, also adds their changes to `digest`.
template <class T, ValueCodec kCodec, bool kRefresh, bool kDigest, class Elements>
void code_elements(const TileView& view, const TileContext& tile, Elements elements, const std::uint32_t* found,
                   std::uint32_t count, T* coded, DigestChanges<T>& digest) {
  const auto code = [&](std::uint32_t i, [[maybe_unused]] const auto& record) {
    const std::uint32_t at = found[i];
    const T new_bits = load_word<T>(elements.template current<T>(at));
    T old_bits = 0;
    [[maybe_unused]] const std::int64_t old_offset = elements.template old_offset<T>(at);
    if constexpr (kCodec != ValueCodec::kRaw || kDigest) old_bits = load_word<T>(view.old + old_offset);
    if constexpr (kCodec == ValueCodec::kRaw) coded[i] = new_bits;
    if constexpr (kCodec == ValueCodec::kXor) coded[i] = static_cast<T>(new_bits ^ old_bits);
    if constexpr (kCodec == ValueCodec::kUlp) coded[i] = ulp_difference(new_bits, old_bits, tile.order);
    if constexpr (kRefresh) store_word(view.refresh + old_offset, 0, new_bits);
    if constexpr (kDigest) record(elements.index(at), old_bits, new_bits);
  };
  if constexpr (kDigest) {
    digest.add_each(count, code);
  } else {
    for (std::uint32_t i = 0; i < count; ++i) code(i, nullptr);
  }
}

/// Does the same as code_elements for all view.changed changes among the `elements` contiguous elements of the view,
/// but reads all elements, which is faster when many of them changed. Returns true when it has written the bitmap of
/// all changes to `bitmap`.
template <class T, ValueCodec kCodec, bool kRefresh, bool kDigest>
bool code_dense_elements(const TileView& view, const TileContext& tile, std::uint32_t elements,
                         const std::uint32_t* found, T* coded, std::byte* bitmap, DigestChanges<T>& digest) {
  constexpr std::uint32_t kRun = 2048;
  [[maybe_unused]] T before[kRun + cpu::kCodedSlack];
  [[maybe_unused]] T after[kRun + cpu::kCodedSlack];
  const FlatElements places(view, tile);
  std::uint32_t done = 0;
  bool complete = true;
  for (std::uint32_t first = 0; first < elements; first += kRun) {
    const std::uint32_t end = std::min(elements, first + kRun);
    const std::byte* const current = view.current + first * sizeof(T);
    const std::uint32_t differing =
        cpu::code_changed(current, view.old + first * sizeof(T), end - first, sizeof(T), kCodec, tile.order,
                          coded + done, kDigest ? before : nullptr, kDigest ? after : nullptr, bitmap + first / 8);
    const std::uint32_t* const last =
        end == elements ? found + view.changed
                        : std::lower_bound(found + done, found + std::min(view.changed, done + kRun), end);
    const auto count = static_cast<std::uint32_t>(last - found) - done;
    if (count != differing) {  // The detector reports elements that did not change.
      complete = false;
      code_elements<T, kCodec, kRefresh, kDigest>(view, tile, places, found + done, count, coded + done, digest);
    } else {
      if constexpr (kDigest) digest.add_run(places.index(0), found + done, before, after, count);
      if constexpr (kRefresh) std::memcpy(view.refresh + first * sizeof(T), current, (end - first) * sizeof(T));
    }
    done += count;
  }
  return complete;
}

/// When more than 1 in kDenseOneIn elements changed, code_dense_elements is faster than code_elements.
constexpr std::uint32_t kDenseOneIn = 16;

/// Codes the changes in a part of a tile that has `elements` elements; `found` has the positions of the changes within
/// the part. Writes their positions in the block to `positions`, and their coded words to `coded`. Refreshes the
/// snapshot and sums the digest as code_elements does. Returns true when `bitmap` has the bitmap of the changes.
template <class T, ValueCodec kCodec, bool kRefresh, bool kDigest>
bool code_changes(const TileView& view, const TileContext& tile, std::uint32_t elements, const std::uint32_t* found,
                  std::uint32_t* positions, T* coded, std::byte* bitmap, DigestChanges<T>& digest) {
  const std::uint32_t base = tile.base;
  const std::uint32_t changed = view.changed;
  for (std::uint32_t i = 0; i < changed; ++i) positions[i] = base + found[i];
  if (view.current_view != nullptr || view.old_view != nullptr || !tile.index->flat) {
    code_elements<T, kCodec, kRefresh, kDigest>(view, tile, StridedElements(view, tile), found, view.changed, coded,
                                                digest);
    return false;
  }
  if (view.old != nullptr && std::uint64_t{view.changed} * kDenseOneIn > elements) {
    return code_dense_elements<T, kCodec, kRefresh, kDigest>(view, tile, elements, found, coded, bitmap, digest);
  }
  code_elements<T, kCodec, kRefresh, kDigest>(view, tile, FlatElements(view, tile), found, view.changed, coded, digest);
  return false;
}

template <class T>
using CodeChanges = bool (*)(const TileView&, const TileContext&, std::uint32_t, const std::uint32_t*, std::uint32_t*,
                             T*, std::byte*, DigestChanges<T>&);

template <class T, ValueCodec kCodec>
CodeChanges<T> select_coder(bool refresh, bool digest) {
  if (refresh) return digest ? code_changes<T, kCodec, true, true> : code_changes<T, kCodec, true, false>;
  return digest ? code_changes<T, kCodec, false, true> : code_changes<T, kCodec, false, false>;
}

template <class T>
CodeChanges<T> select_coder(ValueCodec values, bool refresh, bool digest) {
  switch (values) {
    case ValueCodec::kRaw:
      return select_coder<T, ValueCodec::kRaw>(refresh, digest);
    case ValueCodec::kXor:
      return select_coder<T, ValueCodec::kXor>(refresh, digest);
    default:
      return select_coder<T, ValueCodec::kUlp>(refresh, digest);
  }
}

}  // namespace sparsecast
