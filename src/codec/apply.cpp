#include "codec/apply.hpp"

#include <algorithm>

#include "codec/codec_common.hpp"
#include "core/digest_common.hpp"
#include "core/word.hpp"

namespace sparsecast {
namespace {

/// How far ahead of the writes cache lines are asked for: positions are random within the block.
constexpr std::uint32_t kPrefetchDistance = 24;

template <class T, ValueCodec kCodec, bool kDigest>
void write_changes(const DecodedBlock<T>& decoded, const BlockRef& block, const ApplyTarget& target,
                   Direction direction, DigestSum& sum) {
  std::byte* const window = target.window;
  const bool floating = is_floating(target.dtype);
  const bool inverse = direction == Direction::kInverse;
  const std::uint32_t* positions = decoded.dense ? nullptr : decoded.positions.data();
  for (std::uint32_t i = 0; i < decoded.count; ++i) {
    const std::uint32_t at = positions != nullptr ? positions[i] : i;
    if (positions != nullptr) {
      __builtin_prefetch(window + positions[std::min(i + kPrefetchDistance, decoded.count - 1)] * sizeof(T), 1);
    }
    const T old_bits = load_word<T>(window, at);
    const T new_bits = changed_bits(old_bits, decoded.coded[i], kCodec, floating, inverse);
    store_word(window, at, new_bits);
    if constexpr (kDigest) {
      digest_replace(sum, target.key.lo, target.key.hi, block.first_element + at, old_bits, new_bits);
    }
    if (target.replaced != nullptr) {
      const auto* bytes = reinterpret_cast<const std::byte*>(&old_bits);
      target.replaced->insert(target.replaced->end(), bytes, bytes + sizeof(T));
    }
  }
}

template <class T>
void write_changes(const DecodedBlock<T>& decoded, const BlockRef& block, const ApplyTarget& target,
                   Direction direction) {
  DigestSum sum;
  const auto run = [&]<ValueCodec kCodec>() {
    if (target.change != nullptr) {
      write_changes<T, kCodec, true>(decoded, block, target, direction, sum);
    } else {
      write_changes<T, kCodec, false>(decoded, block, target, direction, sum);
    }
  };
  switch (block.coding.values) {
    case ValueCodec::kRaw:
      run.template operator()<ValueCodec::kRaw>();
      break;
    case ValueCodec::kXor:
      run.template operator()<ValueCodec::kXor>();
      break;
    case ValueCodec::kUlp:
      run.template operator()<ValueCodec::kUlp>();
      break;
  }
  if (target.change != nullptr) *target.change += StateDigest{{sum.lo, sum.hi}};
}

}  // namespace

void validate_block(const BlockRef& block, DType dtype, ApplyScratch& scratch) {
  with_word(element_size(dtype), [&]<class T>() { decode_block(block, scratch.get<T>()); });
}

std::uint32_t apply_block(const BlockRef& block, const ApplyTarget& target, Direction direction,
                          ApplyScratch& scratch) {
  if (direction == Direction::kInverse && block.coding.values == ValueCodec::kRaw) {
    throw Error(ErrorCode::kUsage, "a raw block cannot be inverted without the bits it replaced");
  }
  with_word(element_size(target.dtype), [&]<class T>() {
    DecodedBlock<T>& decoded = scratch.get<T>();
    decode_block(block, decoded);
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
