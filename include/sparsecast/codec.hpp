// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "sparsecast/export.hpp"

namespace sparsecast {

/// Form in which a block stores the positions of its changed elements. Numbers are wire codes. "At 1 %" means: when 1 %
/// of the elements changed.
enum class PositionCodec : std::uint8_t {
  kIndex32 = 0,  ///< One u32 position per changed element, for interop and debugging.
  kGap16 = 1,    ///< One gap per changed element, for interop: u16, or u32 in a block where a gap does not fit.
  /// Rice-coded gaps with one parameter per block: the default, about 8.1 bits per changed element at 1 %.
  kPacked = 2,
  kBitmap = 3,  ///< One bit per element of the block, set where the element changed.
  kDense = 4,   ///< No positions: the block stores the values of all its elements, changed or not.
  /// Rice-coded ranks: the codec with the fewest bytes, about 5.6 bits per changed element at 1 %. Elements are divided
  /// into classes by the exponent of their old value. The rank of a changed element is the number of elements of its
  /// class before it in the block. Values are coded by the same exponent. Decoding needs the old weights of the whole
  /// block.
  kContext = 5,
};

/// Form in which a block stores the value of a changed element. Numbers are wire codes.
enum class ValueCodec : std::uint8_t {
  kRaw = 0,  ///< The new bits of the element. Applying the delta twice is harmless.
  kXor = 1,  ///< Old bits ^ new bits. Applying the delta twice undoes it, so it must be applied exactly once.
  /// Difference of the new and the old bits as ordered integers, modulo 2^w for elements of w bits: about 1.8 bits per
  /// changed element. Such deltas can be composed and inverted.
  kUlp = 2,
};

/// Position codecs that an encoder may use. In every mode, a block that would be larger than its dense form is sent as
/// `kDense`, so no delta is more than 1 % larger than the weights.
enum class PositionMode : std::uint8_t {
  /// Chooses the smallest of packed, bitmap and dense for each block, unless EncodeOptions::objective selects something
  /// else: kContext where the encoder supports it, or faster codes for blocks with many changed elements.
  kAuto = 0,
  kPacked,
  kGap16,
  kIndex32,
  kBitmap,
  /// Chooses the smallest of context, packed, bitmap and dense for each block, and makes larger blocks. Needs `kUlp`
  /// values. Makes a third fewer bytes than kAuto; meant for the delta log and for slow links.
  kContext,
};

/// Cost that PositionMode::kAuto minimizes: the compute time of both ends, the bytes of the delta, or the time until a
/// version has arrived over a link of a known rate. docs/performance.md has the rule, and the measured rates at which
/// the codecs change.
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
/// more time on the link than their coding costs. Assumes 16 cores at each end; each second that one core spends on
/// this coding saves 2 MB of delta. A constant, so that the encoded bytes do not depend on the machine.
inline constexpr double kContextLinkBytesPerSecond = 16 * 2e6;

/// From this link rate on, in bytes per second, blocks in which 25 % or more of the elements changed use the fast
/// bitmap coding: compressing them further costs more processor time than it saves time on the link. Assumes 16 cores
/// at each end. A constant, so that the encoded bytes do not depend on the machine.
inline constexpr double kQuickLinkBytesPerSecond = 16 * 80e6;

SPARSECAST_API std::string_view to_string(PositionCodec codec) noexcept;
SPARSECAST_API std::string_view to_string(ValueCodec codec) noexcept;
SPARSECAST_API std::string_view to_string(PositionMode mode) noexcept;
/// Returns the mode whose to_string() is `name`; nullopt for any other name.
SPARSECAST_API std::optional<PositionMode> position_mode_from_name(std::string_view name) noexcept;
/// Returns the codec whose to_string() is `name`; nullopt for any other name.
SPARSECAST_API std::optional<ValueCodec> value_codec_from_name(std::string_view name) noexcept;
/// Returns the objective that a text names: "speed", "size", or the rate of a link above 0 in Mb/s, Gb/s (bits), MB/s
/// or GB/s (bytes), as in "100Mb/s". Returns nullopt for any other text.
SPARSECAST_API std::optional<Objective> objective_from_name(std::string_view name) noexcept;

/// Number of elements in a tile, the unit in which changes are detected. A block is a run of whole tiles within one
/// section (docs/wire-format.md, "Blocks"). Fixed by format version 1.
inline constexpr std::uint32_t kTileElems = 1U << 14;
/// Number of elements in a section, the part of a tensor that no block crosses. Fixed by format version 1.
inline constexpr std::uint32_t kSectionElems = 1U << 22;
/// Number of tiles in a section. Fixed by format version 1.
inline constexpr std::uint32_t kTilesPerSection = kSectionElems / kTileElems;
/// Default of EncodeOptions::block_changes. A block ends with the tile in which the number of changes, counted from the
/// start of the section, reaches a multiple of this option.
inline constexpr std::uint32_t kBlockChanges = 512;
/// Value of EncodeOptions::block_changes for fewer and larger blocks; the only other value is kBlockChanges, the
/// default. `context` blocks (PositionMode::kContext) always have this size, whatever the option says.
inline constexpr std::uint32_t kLargeBlockChanges = 4096;

/// Minimum value of EncodeOptions::frame_capacity, in bytes.
inline constexpr std::uint32_t kMinFrameCapacity = 1U << 20;
/// Maximum value of EncodeOptions::frame_capacity, in bytes.
inline constexpr std::uint32_t kMaxFrameCapacity = 1U << 30;

struct EncodeOptions {
  PositionMode positions = PositionMode::kAuto;
  ValueCodec values = ValueCodec::kUlp;
  /// Objective of kAuto; nullopt: size for a LogPublisher, speed for all others. kAuto becomes kContext when all of
  /// these hold: the objective is size, or a link below kContextLinkBytesPerSecond; the values are kUlp; at least one
  /// tensor has a floating dtype; and the encoder has all old weights (a fused cast, a mask, and a derived delta
  /// without its base lack them). When the objective is speed, or a link of kQuickLinkBytesPerSecond or more, blocks in
  /// which a quarter or more of the elements changed are coded as a bitmap and values in fields of one width: both ends
  /// code such blocks faster, but they have more bytes (docs/performance.md).
  std::optional<Objective> objective = {};
  /// Number of changes after which a block ends: kBlockChanges or kLargeBlockChanges. kBlockChanges makes blocks of the
  /// size that suits a device's warps; a device encodes no other size (Error{kUnsupported}). kLargeBlockChanges makes
  /// fewer and larger blocks, which hosts code faster and with some 3 % fewer bytes (docs/performance.md); a subscriber
  /// on a device has to decode them once more in the pause. The command-line tools write large blocks, unless the
  /// objective is speed.
  std::uint32_t block_changes = kBlockChanges;
  int zstd_level = 0;  ///< Level of zstd for frames, 1 to 19, used where it makes a frame smaller; 0: no zstd.
  /// Maximum bytes of one frame record, from kMinFrameCapacity to kMaxFrameCapacity.
  std::uint32_t frame_capacity = 16U << 20;
  int threads = 1;  ///< Number of encoding threads; 0: all cores. Does not affect the encoded bytes.
};

}  // namespace sparsecast
