// SPDX-License-Identifier: Apache-2.0
#include "codec/apply.hpp"

#include <algorithm>
#include <optional>

#include "codec/codec_common.hpp"
#include "codec/word_kernels.hpp"
#include "core/digest_changes.hpp"
#include "core/word.hpp"

namespace sparsecast {
namespace {

/// Elements that are contiguous in memory, and in the digest.
class FlatPlaces {
 public:
  FlatPlaces(const BlockRef& block, const ApplyTarget& target)
      : window_(target.window), first_(block.first_element + (target.index != nullptr ? target.index->first : 0)) {}

  template <class T>
  std::byte* word(std::uint32_t at) const {
    return window_ + at * sizeof(T);
  }
  template <class T>
  std::byte* word_ahead(std::uint32_t at) const {
    return word<T>(at);
  }
  /// Adds changes `first` to `end` of the block to the digest.
  template <class T>
  void add_to(DigestChanges<T>& digest, const DecodedBlock<T>& decoded, std::uint32_t first, std::uint32_t end,
              const T* before, const T* after) const {
    if (decoded.dense) {
      digest.add_each(end - first,
                      [&](std::uint32_t i, const auto& record) { record(first_ + first + i, before[i], after[i]); });
    } else {
      digest.add_run(first_, decoded.positions.data() + first, before, after, end - first);
    }
  }

 private:
  std::byte* window_;
  std::uint64_t first_;
};

/// Elements of views. Prefetched elements are in a later run than written ones, so prefetching and writing each have a
/// walk of their own.
class StridedPlaces {
 public:
  StridedPlaces(const BlockRef& block, const ApplyTarget& target)
      : data_(target.window),
        first_(block.first_element),
        digest_first_(target.index != nullptr ? target.index->first : 0),
        places_(target.view),
        ahead_(target.view),
        indices_(target.index != nullptr ? target.index->walk() : ElementWalk(nullptr)) {
    // Without a view the window starts at the block.
    if (target.view == nullptr) window_first_ = first_;
  }

  template <class T>
  std::byte* word(std::uint32_t at) {
    return data_ + places_.offset(first_ - window_first_ + at) * static_cast<std::int64_t>(sizeof(T));
  }
  template <class T>
  std::byte* word_ahead(std::uint32_t at) {
    return data_ + ahead_.offset(first_ - window_first_ + at) * static_cast<std::int64_t>(sizeof(T));
  }
  template <class T>
  void add_to(DigestChanges<T>& digest, const DecodedBlock<T>& decoded, std::uint32_t first, std::uint32_t end,
              const T* before, const T* after) {
    digest.add_each(end - first, [&](std::uint32_t i, const auto& record) {
      const std::uint64_t at = first_ + (decoded.dense ? first + i : decoded.positions[first + i]);
      record(digest_first_ + static_cast<std::uint64_t>(indices_.offset(at)), before[i], after[i]);
    });
  }

 private:
  std::byte* data_;
  std::uint64_t first_;
  std::uint64_t window_first_ = 0;
  std::uint64_t digest_first_;
  ElementWalk places_;
  ElementWalk ahead_;
  ElementWalk indices_;
};

/// Records the changes that are written to a target: their digest and the replaced words, as far as the target asks for
/// them.
template <class T>
class WrittenChanges {
 public:
  explicit WrittenChanges(const ApplyTarget& target) : target_(target) {
    if (target.change != nullptr) digest_.emplace(target.index->key);
  }

  /// Adds changes [first, end) of a block, whose bits change from `before` to `after`.
  template <class Places>
  void add(Places& places, const DecodedBlock<T>& decoded, std::uint32_t first, std::uint32_t end, const T* before,
           const T* after) {
    if (digest_) places.add_to(*digest_, decoded, first, end, before, after);
    if (target_.replaced != nullptr) {
      const auto* bytes = reinterpret_cast<const std::byte*>(before);
      target_.replaced->insert(target_.replaced->end(), bytes, bytes + (end - first) * sizeof(T));
    }
  }
  /// Adds the digest of all recorded changes to the target's.
  void end() {
    if (!digest_) return;
    const DigestSum sum = digest_->take();
    *target_.change += StateDigest{{sum.lo, sum.hi}};
  }

 private:
  const ApplyTarget& target_;
  std::optional<DigestChanges<T>> digest_;
};

/// Changes that are written together: their bits are read, moved and written, one loop after another.
constexpr std::uint32_t kRun = cpu::kMostSummedChanges;

template <class T, class Places>
void write_changes(const DecodedBlock<T>& decoded, ValueCodec values, const ApplyTarget& target, Direction direction,
                   Places places) {
  const std::uint32_t* positions = decoded.dense ? nullptr : decoded.positions.data();
  WrittenChanges<T> written(target);
  std::byte* words[kRun];
  T before[kRun];
  T after[kRun];
  std::uint32_t ahead = 0;
  for (std::uint32_t first = 0; first < decoded.count; first += kRun) {
    const std::uint32_t end = std::min(decoded.count, first + kRun);
    if (positions != nullptr) {
      // Prefetches the cache lines of the next run too.
      for (const std::uint32_t last = std::min(decoded.count, end + kRun); ahead < last; ++ahead) {
        __builtin_prefetch(places.template word_ahead<T>(positions[ahead]), 1);
      }
    }
    for (std::uint32_t i = 0; i < end - first; ++i) {
      words[i] = places.template word<T>(positions != nullptr ? positions[first + i] : first + i);
      before[i] = load_word<T>(words[i]);
    }
    cpu::advance_words(before, decoded.coded.data() + first, end - first, sizeof(T), values, ulp_order(target.dtype),
                       direction == Direction::kInverse, after);
    for (std::uint32_t i = 0; i < end - first; ++i) store_word(words[i], 0, after[i]);
    written.add(places, decoded, first, end, before, after);
  }
  written.end();
}

/// write_changes for a bitmap block whose elements are contiguous in memory, and in the digest.
template <class T>
void write_marked(const DecodedBlock<T>& decoded, const BlockRef& block, const ApplyTarget& target,
                  Direction direction) {
  constexpr std::uint32_t kElements = 2048;
  const FlatPlaces places(block, target);
  WrittenChanges<T> written(target);
  T before[kElements + cpu::kCodedSlack];
  T after[kElements];
  std::uint32_t done = 0;
  for (std::uint32_t first = 0; first < block.span; first += kElements) {
    const std::uint32_t count = cpu::gather_marked(target.window + first * sizeof(T), decoded.bitmap + first / 8,
                                                   std::min(kElements, block.span - first), sizeof(T), before);
    cpu::advance_words(before, decoded.coded.data() + done, count, sizeof(T), block.coding.values,
                       ulp_order(target.dtype), direction == Direction::kInverse, after);
    const std::uint32_t* positions = decoded.positions.data() + done;
    for (std::uint32_t i = 0; i < count; ++i) store_word(target.window, positions[i], after[i]);
    written.add(places, decoded, done, done + count, before, after);
    done += count;
  }
  written.end();
}

template <class T>
void write_changes(const DecodedBlock<T>& decoded, const BlockRef& block, const ApplyTarget& target,
                   Direction direction) {
  const bool flat = target.view == nullptr && (target.index == nullptr || target.index->flat);
  if (flat && decoded.bitmap != nullptr) {
    write_marked(decoded, block, target, direction);
  } else if (flat) {
    write_changes<T>(decoded, block.coding.values, target, direction, FlatPlaces(block, target));
  } else {
    write_changes<T>(decoded, block.coding.values, target, direction, StridedPlaces(block, target));
  }
}

}  // namespace

void validate_block(const BlockRef& block, DType dtype, ApplyScratch& scratch) {
  with_word(element_size(dtype), [&]<class T>() {
    if (block.coding.positions == PositionCodec::kContext) {
      check_context(block, scratch.get<T>());
    } else {
      decode_block(block, scratch.get<T>());
    }
  });
}

std::uint32_t apply_block(const BlockRef& block, const ApplyTarget& target, Direction direction,
                          ApplyScratch& scratch) {
  if (direction == Direction::kInverse && block.coding.values == ValueCodec::kRaw) {
    throw Error(ErrorCode::kUsage, "a raw block cannot be inverted without the bits it replaced");
  }
  with_word(element_size(target.dtype), [&]<class T>() {
    DecodedBlock<T>& decoded = scratch.get<T>();
    const OldBits old{target.window, target.dtype, target.view};
    decode_block(block, decoded, direction == Direction::kForward ? &old : nullptr);
    write_changes(decoded, block, target, direction);
  });
  return block.changed;
}

std::size_t restore_block(const BlockRef& block, const ApplyTarget& target, ConstBytes replaced,
                          ApplyScratch& scratch) {
  return with_word(element_size(target.dtype), [&]<class T>() -> std::size_t {
    DecodedBlock<T>& decoded = scratch.get<T>();
    decode_block(block, decoded);
    const std::size_t bytes = decoded.count * sizeof(T);
    if (replaced.size() < bytes) throw Error(ErrorCode::kUsage, "the undo record is too short");
    std::memcpy(decoded.coded.data(), replaced.data(), bytes);
    ApplyTarget back = target;
    back.replaced = nullptr;
    write_changes(decoded, block, back, Direction::kForward);
    return bytes;
  });
}

}  // namespace sparsecast
