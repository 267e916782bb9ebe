// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "sparsecast/codec.hpp"

namespace sparsecast {
namespace {

constexpr std::array<std::string_view, 5> kPositionNames = {"index32", "gap16", "packed", "bitmap", "dense"};
constexpr std::array<std::string_view, 3> kValueNames = {"raw", "xor", "ulp"};
constexpr std::array<std::string_view, 5> kModeNames = {"auto", "packed", "gap16", "index32", "bitmap"};

template <class Enum, std::size_t N>
std::optional<Enum> find_name(const std::array<std::string_view, N>& names, std::string_view name) {
  for (std::size_t i = 0; i < N; ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

}  // namespace

std::string_view to_string(PositionCodec codec) noexcept { return kPositionNames[static_cast<std::size_t>(codec)]; }
std::string_view to_string(ValueCodec codec) noexcept { return kValueNames[static_cast<std::size_t>(codec)]; }
std::string_view to_string(PositionMode mode) noexcept { return kModeNames[static_cast<std::size_t>(mode)]; }

std::optional<PositionMode> position_mode_from_name(std::string_view name) noexcept {
  return find_name<PositionMode>(kModeNames, name);
}
std::optional<ValueCodec> value_codec_from_name(std::string_view name) noexcept {
  return find_name<ValueCodec>(kValueNames, name);
}

}  // namespace sparsecast
