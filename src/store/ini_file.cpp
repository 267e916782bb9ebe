// SPDX-License-Identifier: Apache-2.0
#include "store/ini_file.hpp"

#include <fmt/format.h>

#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

/// A comment within a line needs a blank before its sign: secrets may hold '#'.
std::string_view without_comment(std::string_view text) {
  for (std::size_t i = 1; i < text.size(); ++i) {
    if ((text[i] == '#' || text[i] == ';') && is_blank(text[i - 1])) return text.substr(0, i);
  }
  return text;
}

class IniParser {
 public:
  explicit IniParser(const std::string& path) : path_(path) {}

  void line(std::string_view text) {
    ++number_;
    const bool indented = !text.empty() && is_blank(text.front());
    const std::string_view content = trimmed(text);
    if (content.empty() || content.front() == '#' || content.front() == ';') return;
    if (content.front() == '[') {
      open_section(content);
    } else {
      setting(content, indented);
    }
  }

  IniFile take() { return std::move(file_); }

 private:
  void open_section(std::string_view content) {
    const std::size_t end = content.find(']');
    if (end == std::string_view::npos) refuse("a section without its ]");
    const std::string_view name = trimmed(content.substr(1, end - 1));
    if (name.empty()) refuse("a section without a name");
    section_ = &file_[std::string(name)];
    outer_.clear();
  }

  void setting(std::string_view content, bool indented) {
    if (section_ == nullptr) refuse("a setting before the first section");
    const std::size_t equals = content.find('=');
    if (equals == std::string_view::npos) refuse("neither a section nor a setting");
    const std::string name(trimmed(content.substr(0, equals)));
    if (name.empty()) refuse("a setting without a name");
    const std::string value(trimmed(without_comment(content.substr(equals + 1))));
    const bool nested = indented && !outer_.empty();
    (*section_)[nested ? outer_ + "." + name : name] = value;
    if (!nested) outer_ = value.empty() ? name : std::string();
  }

  [[noreturn]] void refuse(const char* what) const {
    throw Error(ErrorCode::kCorrupt, what, fmt::format("{}, line {}", path_, number_));
  }

  const std::string& path_;
  IniFile file_;
  std::map<std::string, std::string>* section_ = nullptr;
  std::string outer_;  ///< The setting without a value that indented lines belong to.
  std::size_t number_ = 0;
};

}  // namespace

IniFile parse_ini_file(std::string_view text, const std::string& path) {
  IniParser parser(path);
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    parser.line(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return parser.take();
}

}  // namespace sparsecast
