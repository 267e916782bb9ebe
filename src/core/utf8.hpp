// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace sparsecast {

/// Returns true when `text` is strict UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
inline bool is_utf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const int length = lead < 0x80                   ? 1
                       : lead >= 0xC2 && lead < 0xE0 ? 2
                       : lead >= 0xE0 && lead < 0xF0 ? 3
                       : lead >= 0xF0 && lead < 0xF5 ? 4
                                                     : 0;
    if (length == 0 || i + static_cast<std::size_t>(length) > text.size()) return false;
    for (int k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + static_cast<std::size_t>(k)]);
      unsigned char low = 0x80;
      unsigned char high = 0xBF;
      if (k == 1) {
        if (lead == 0xE0) low = 0xA0;
        if (lead == 0xED) high = 0x9F;
        if (lead == 0xF0) low = 0x90;
        if (lead == 0xF4) high = 0x8F;
      }
      if (next < low || next > high) return false;
    }
    i += static_cast<std::size_t>(length);
  }
  return true;
}

/// Returns text from a file in a form that is safe in an error message: long text is cut between two characters, and
/// control characters, which could end the message or control the terminal, are replaced.
inline std::string excerpt(std::string_view text) {
  constexpr std::size_t kMost = 200;
  std::size_t end = text.size() <= kMost ? text.size() : kMost;
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  std::string shown(text.substr(0, end));
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return end < text.size() ? shown + "..." : shown;
}

}  // namespace sparsecast
