// SPDX-License-Identifier: Apache-2.0
#pragma once

// The directory entry of a block and its coding word (docs/wire-format.md §4).

#include <cstddef>
#include <cstdint>

#include "core/host_device.hpp"
#include "sparsecast/codec.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast {

inline constexpr std::size_t kFramePrefix = 64;  ///< Bytes of the fixed fields at the beginning of a frame record.
/// Alignment, in bytes, of each of several frame records that lie together in device memory.
inline constexpr std::uint32_t kFrameAlignment = 256;

inline constexpr std::size_t kGroupBytes = 8;
inline constexpr std::size_t kBlockEntryBytes = 16;

struct Coding {
  PositionCodec positions = PositionCodec::kPacked;
  ValueCodec values = ValueCodec::kUlp;
  /// Rice parameter of the gaps (packed); for gap16, 1 when the gaps are u32 and 0 when they are u16.
  std::uint32_t kp = 0;
  std::uint32_t kv = 0;  ///< Number of low bits of each magnitude that are stored without a code.
  std::uint32_t ke = 0;  ///< Rice parameter of the gaps between exceptions.
  bool lengths = false;  ///< True when each magnitude is stored with its own length in bits; kv and ke are then 0.

  constexpr std::uint32_t pack() const {
    return static_cast<std::uint32_t>(positions) | static_cast<std::uint32_t>(values) << 3 | kp << 5 | kv << 10 |
           ke << 16 | (lengths ? 1U << 21 : 0U);
  }
  static constexpr Coding unpack(std::uint32_t word) {
    return {static_cast<PositionCodec>(word & 7),
            static_cast<ValueCodec>(word >> 3 & 3),
            word >> 5 & 31,
            word >> 10 & 63,
            word >> 16 & 31,
            (word >> 21 & 1) != 0};
  }
};

inline constexpr std::uint32_t kMaxRiceParameter = 22;

/// Options for coding blocks that are not `context` (docs/wire-format.md §5).
struct BlockRules {
  PositionMode positions = PositionMode::kAuto;
  ValueCodec values = ValueCodec::kUlp;
  /// Whether blocks with many changes use a bitmap and values in fields of one width (is_quick_block).
  bool quick = false;
};

/// Returns the block rules for `options`, which must be a result of with_positions_decided().
inline BlockRules rules_of(const EncodeOptions& options) {
  const Objective objective = options.objective.value_or(Objective::speed());
  return {options.positions, options.values,
          options.positions == PositionMode::kAuto && objective.link_bytes_per_second >= kQuickLinkBytesPerSecond};
}

/// A block that an encoder has finished; its payload lies at [payload_begin, payload_begin + payload_bytes) of the
/// section's buffer.
struct EncodedBlock {
  std::uint32_t first_tile = 0;
  std::uint32_t tiles = 1;
  std::uint32_t changed = 0;
  std::uint32_t coding = 0;
  std::uint64_t payload_begin = 0;
  std::uint32_t payload_bytes = 0;
};

/// Returns the number of elements in the run of `tiles` tiles from `first_tile` on, in a tensor of `tensor_elements`
/// elements; elements beyond the end of the tensor do not count.
SPARSECAST_HD std::uint32_t block_span(std::uint64_t tensor_elements, std::uint64_t first_tile, std::uint32_t tiles) {
  const std::uint64_t whole = std::uint64_t{tiles} * kTileElems;
  const std::uint64_t left = tensor_elements - first_tile * kTileElems;
  return static_cast<std::uint32_t>(left < whole ? left : whole);
}

// The rules of docs/wire-format.md §4 for a directory entry; every reader, on the host or on a device, uses these
// functions.

/// Returns true when every tile of a run has at least one element of the tensor. The run has `tiles` tiles from
/// `first_tile` on.
SPARSECAST_HD bool run_is_in_tensor(std::uint64_t tensor_elements, std::uint64_t first_tile, std::uint32_t tiles) {
  return (first_tile + tiles - 1) * kTileElems < tensor_elements;
}

/// Returns true when a run of `tiles` tiles from `first_tile` on ends within the section of its first tile.
SPARSECAST_HD bool run_is_in_section(std::uint64_t first_tile, std::uint32_t tiles) {
  return (first_tile + tiles - 1) / kTilesPerSection == first_tile / kTilesPerSection;
}

/// Returns true when a run that starts at `first_tile` lies after the run of `previous_tiles` tiles from
/// `previous_tile` on in the same tensor.
SPARSECAST_HD bool run_follows(std::uint64_t first_tile, std::uint64_t previous_tile, std::uint32_t previous_tiles) {
  return first_tile >= previous_tile + previous_tiles;
}

/// Returns true when `word` is a valid coding word of a `context` block.
SPARSECAST_HD bool context_coding_is_possible(std::uint32_t word) {
  const Coding c = Coding::unpack(word);
  return (word >> 21) == 0 && c.positions == PositionCodec::kContext && c.values == ValueCodec::kUlp && c.kp == 0 &&
         c.kv == 0 && c.ke <= kMaxRiceParameter;
}

/// Returns true when `word` is a valid coding word of a block that is not `context`, for elements of `width` bits in a
/// delta whose value codec is `values`.
SPARSECAST_HD bool coding_is_possible(std::uint32_t word, ValueCodec values, std::uint32_t width) {
  const Coding c = Coding::unpack(word);
  const bool ulp_bits = c.values == ValueCodec::kUlp && c.positions != PositionCodec::kDense;
  const std::uint32_t kp_limit = c.positions == PositionCodec::kPacked  ? kMaxRiceParameter
                                 : c.positions == PositionCodec::kGap16 ? 1
                                                                        : 0;
  return (word >> 22) == 0 && (!c.lengths || (ulp_bits && c.kv == 0 && c.ke == 0)) &&
         c.positions <= PositionCodec::kDense && c.values == values && c.kp <= kp_limit &&
         c.kv <= (ulp_bits ? width - 1 : 0) && c.ke <= (ulp_bits ? kMaxRiceParameter : 0);
}

}  // namespace sparsecast
