// SPDX-License-Identifier: Apache-2.0
#include "codec/apply.hpp"

#include <algorithm>

#include "codec/codec_common.hpp"
#include "core/digest_changes.hpp"
#include "core/word.hpp"

namespace sparsecast {
namespace {

/// Distance ahead of the writes at which cache lines are asked for: positions are random within the block.
constexpr std::uint32_t kPrefetchDistance = 24;

/// Elements that follow one another in memory, and in the digest.
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
  std::uint64_t index(std::uint32_t at) const { return first_ + at; }

 private:
  std::byte* window_;
  std::uint64_t first_;
};

/// Elements of views. What is prefetched is in a later run than what is written, so each has a walk of its own.
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
  std::uint64_t index(std::uint32_t at) {
    return digest_first_ + static_cast<std::uint64_t>(indices_.offset(first_ + at));
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

template <class T, ValueCodec kCodec, bool kDigest, class Places>
void write_changes(const DecodedBlock<T>& decoded, const ApplyTarget& target, Direction direction, Places places) {
  const bool floating = is_floating(target.dtype);
  const bool inverse = direction == Direction::kInverse;
  const std::uint32_t* positions = decoded.dense ? nullptr : decoded.positions.data();
  const auto write = [&](std::uint32_t i, const auto& record) {
    const std::uint32_t at = positions != nullptr ? positions[i] : i;
    if (positions != nullptr) {
      const std::uint32_t ahead = positions[std::min(i + kPrefetchDistance, decoded.count - 1)];
      __builtin_prefetch(places.template word_ahead<T>(ahead), 1);
    }
    std::byte* const word = places.template word<T>(at);
    const T old_bits = load_word<T>(word);
    const T new_bits = changed_bits(old_bits, decoded.coded[i], kCodec, floating, inverse);
    store_word(word, 0, new_bits);
    if constexpr (kDigest) record(places.index(at), old_bits, new_bits);
    if (target.replaced != nullptr) {
      const auto* bytes = reinterpret_cast<const std::byte*>(&old_bits);
      target.replaced->insert(target.replaced->end(), bytes, bytes + sizeof(T));
    }
  };
  if constexpr (kDigest) {
    DigestChanges<T> digest(target.index->key, target.index->mix);
    digest.add_each(decoded.count, write);
    const DigestSum sum = digest.take();
    *target.change += StateDigest{{sum.lo, sum.hi}};
  } else {
    for (std::uint32_t i = 0; i < decoded.count; ++i) write(i, nullptr);
  }
}

template <class T, ValueCodec kCodec>
void write_changes(const DecodedBlock<T>& decoded, const BlockRef& block, const ApplyTarget& target,
                   Direction direction) {
  const bool flat = target.view == nullptr && (target.index == nullptr || target.index->flat);
  const auto run = [&]<bool kDigest>() {
    if (flat) {
      write_changes<T, kCodec, kDigest>(decoded, target, direction, FlatPlaces(block, target));
    } else {
      write_changes<T, kCodec, kDigest>(decoded, target, direction, StridedPlaces(block, target));
    }
  };
  if (target.change != nullptr) {
    run.template operator()<true>();
  } else {
    run.template operator()<false>();
  }
}

template <class T>
void write_changes(const DecodedBlock<T>& decoded, const BlockRef& block, const ApplyTarget& target,
                   Direction direction) {
  switch (block.coding.values) {
    case ValueCodec::kRaw:
      write_changes<T, ValueCodec::kRaw>(decoded, block, target, direction);
      break;
    case ValueCodec::kXor:
      write_changes<T, ValueCodec::kXor>(decoded, block, target, direction);
      break;
    case ValueCodec::kUlp:
      write_changes<T, ValueCodec::kUlp>(decoded, block, target, direction);
      break;
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
