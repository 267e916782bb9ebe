// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "sparsecast/export.hpp"

namespace sparsecast {

/// Representation of the positions of a block's changed elements. Numbers are wire codes.
enum class PositionCodec : std::uint8_t {
  kIndex32 = 0,  ///< One u32 a change: interop and debugging.
  kGap16 = 1,    ///< One u16 gap a change (u32 for the whole block where a gap is too big): interop.
  kPacked = 2,   ///< Rice-coded gaps with a parameter per block: the default, about 8.1 bits at 1 %.
  kBitmap = 3,   ///< One bit an element.
  kDense = 4,    ///< Every element of the block, no positions.
  /// Rice-coded ranks within classes of the exponent of the old word, about 5.6 bits at 1 %, and values coded by that
  /// exponent: the smallest. Decoding reads the old weights of the whole block.
  kContext = 5,
};

/// Representation of a changed element's value in a block. Numbers are wire codes.
enum class ValueCodec : std::uint8_t {
  kRaw = 0,  ///< The new bits: applying twice is harmless.
  kXor = 1,  ///< new ^ old: self-inverse, applied exactly once.
  kUlp = 2,  ///< Difference of the ordered-integer form, modulo 2^w: composes and inverts; about 1.8 bits.
};

/// Position codecs that an encoder may use. In every mode, a block that would be larger than its dense form is sent as
/// `kDense`, so no delta exceeds the dense bytes by more than 1 %.
enum class PositionMode : std::uint8_t {
  /// Chooses the smallest of packed, bitmap and dense for each block, unless EncodeOptions::objective selects something
  /// else: kContext where the encoder supports it, or faster codes for blocks in which many elements changed.
  kAuto = 0,
  kPacked,
  kGap16,
  kIndex32,
  kBitmap,
  /// The smallest of context, packed, bitmap and dense, block by block, with larger blocks. Needs `kUlp` values: a
  /// third fewer bytes than kAuto, for the delta log and slow links.
  kContext,
};

/// Cost that PositionMode::kAuto minimizes: the compute time of both ends, the bytes of the delta, or the time until a
/// version has arrived over a link of a known rate. The rule and its measured break-even: docs/performance.md.
struct SPARSECAST_API Objective {
  /// Bytes per second of the slowest link to a receiver. 0 minimizes bytes alone; infinity minimizes compute time
  /// alone.
  double link_bytes_per_second = std::numeric_limits<double>::infinity();

  static constexpr Objective speed() noexcept { return {}; }
  static constexpr Objective size() noexcept { return {0}; }
  static constexpr Objective link(double bytes_per_second) noexcept { return {bytes_per_second}; }
  friend bool operator==(const Objective&, const Objective&) = default;
};

/// Below this link rate, in bytes per second, `context` positions pay off in a live sync: their smaller deltas save
/// more time on the link than their coding costs. Assumes 16 cores at each end, each of which saves 2 MB of delta per
/// second of its time. A constant, so that the encoded bytes do not depend on the machine.
inline constexpr double kContextLinkBytesPerSecond = 16 * 2e6;

/// Above this link rate, blocks of which 25 % or more changed use the fast bitmap coding: compressing further costs
/// more processor time than it saves on the wire. Assumes 16 cores at each end, and is a constant for the same reason.
inline constexpr double kQuickLinkBytesPerSecond = 16 * 80e6;

SPARSECAST_API std::string_view to_string(PositionCodec codec) noexcept;
SPARSECAST_API std::string_view to_string(ValueCodec codec) noexcept;
SPARSECAST_API std::string_view to_string(PositionMode mode) noexcept;
SPARSECAST_API std::optional<PositionMode> position_mode_from_name(std::string_view name) noexcept;
SPARSECAST_API std::optional<ValueCodec> value_codec_from_name(std::string_view name) noexcept;
/// Parses "speed", "size", or the rate of a link above 0 in Mb/s, Gb/s (bits), MB/s or GB/s (bytes): "100Mb/s".
SPARSECAST_API std::optional<Objective> objective_from_name(std::string_view name) noexcept;

/// Sizes of tiles and sections. Detection works on tiles; a block is a run of whole tiles within one section
/// (docs/wire-format.md, "Blocks"). All three constants count elements or tiles and are fixed by format version 1.
inline constexpr std::uint32_t kTileElems = 1U << 14;
inline constexpr std::uint32_t kSectionElems = 1U << 22;
inline constexpr std::uint32_t kTilesPerSection = kSectionElems / kTileElems;
/// A block ends with the tile in which the section's count of changes passes a multiple of
/// EncodeOptions::block_changes, which is kBlockChanges or kLargeBlockChanges. Blocks of PositionMode::kContext always
/// use the latter.
inline constexpr std::uint32_t kBlockChanges = 512;
inline constexpr std::uint32_t kLargeBlockChanges = 4096;

inline constexpr std::uint32_t kMinFrameCapacity = 1U << 20;
inline constexpr std::uint32_t kMaxFrameCapacity = 1U << 30;

struct EncodeOptions {
  PositionMode positions = PositionMode::kAuto;
  ValueCodec values = ValueCodec::kUlp;
  /// Objective that kAuto minimizes. kAuto becomes kContext when all of these hold: the objective is size, or a link
  /// below kContextLinkBytesPerSecond; the values are kUlp; a tensor is of a floating dtype; and the encoder has all
  /// old weights (a fused cast, a mask, and a derived delta without its base lack them). When the objective is speed,
  /// or a link of kQuickLinkBytesPerSecond or more, blocks of which a quarter or more changed use bitmaps, and values
  /// in fields of one width: both ends code these faster, but in more bytes (docs/performance.md). Nullopt: size for a
  /// LogPublisher, else speed.
  std::optional<Objective> objective = {};
  /// kBlockChanges: blocks sized for a device's warps; a device encodes no other size (Error{kUnsupported}).
  /// kLargeBlockChanges: fewer and larger blocks, which hosts code faster, in some 3 % fewer bytes
  /// (docs/performance.md); a device subscriber decodes them within the pause. The commands write large blocks, unless
  /// the objective is speed.
  std::uint32_t block_changes = kBlockChanges;
  int zstd_level = 0;                        ///< 0: frames are stored as they are; 1 to 19: zstd where it is smaller.
  std::uint32_t frame_capacity = 16U << 20;  ///< Bytes of one frame record, kMinFrameCapacity to kMaxFrameCapacity.
  int threads = 1;                           ///< 0: all cores. Never changes the bytes.
};

}  // namespace sparsecast
