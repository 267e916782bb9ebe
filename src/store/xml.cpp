// SPDX-License-Identifier: Apache-2.0
#include "store/xml.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == ':' || c == '_' ||
         c == '-' || c == '.';
}

void append_utf8(std::string& text, std::uint32_t point) {
  const auto put = [&](std::uint32_t byte) { text += static_cast<char>(byte); };
  if (point < 0x80) {
    put(point);
  } else if (point < 0x800) {
    put(0xC0 | point >> 6);
    put(0x80 | (point & 0x3F));
  } else if (point < 0x10000) {
    put(0xE0 | point >> 12);
    put(0x80 | (point >> 6 & 0x3F));
    put(0x80 | (point & 0x3F));
  } else {
    put(0xF0 | point >> 18);
    put(0x80 | (point >> 12 & 0x3F));
    put(0x80 | (point >> 6 & 0x3F));
    put(0x80 | (point & 0x3F));
  }
}

class XmlParser {
 public:
  explicit XmlParser(std::string_view text) : text_(text) {}

  XmlElement document() {
    take("\xEF\xBB\xBF");
    if (take("<?xml")) {
      const std::size_t end = text_.find("?>", at_);
      if (end == std::string_view::npos) refuse("a declaration without its end");
      at_ = end + 2;
    }
    skip_space();
    XmlElement root = element(1);
    skip_space();
    if (at_ != text_.size()) refuse("something after the root");
    return root;
  }

 private:
  /// Parses an element from its '<' to its end.
  XmlElement element(std::size_t depth) {
    if (depth > kMaxXmlDepth) refuse("too deep");
    if (++elements_ > kMaxXmlElements) refuse("too many elements");
    if (!take("<")) refuse("no element");
    XmlElement result;
    result.name = name();
    if (skip_attributes()) return result;
    for (;;) {
      read_text(result.text);
      if (take("</")) break;
      result.children.push_back(element(depth + 1));
    }
    if (name() != result.name) refuse("another element is closed than was opened");
    skip_space();
    if (!take(">")) refuse("a tag without its end");
    return result;
  }

  /// True when the element ends with its tag: <a/>.
  bool skip_attributes() {
    for (;;) {
      const bool space = skip_space();
      if (take("/>")) return true;
      if (take(">")) return false;
      if (!space) refuse("a tag that goes on after its name");
      name();
      skip_space();
      if (!take("=")) refuse("an attribute without a value");
      skip_space();
      const char quote = at_ < text_.size() ? text_[at_] : '\0';
      if (quote != '"' && quote != '\'') refuse("an attribute without quotes");
      const std::size_t end = text_.find(quote, at_ + 1);
      if (end == std::string_view::npos) refuse("an attribute without its end");
      at_ = end + 1;
    }
  }

  /// Reads text up to the next '<'.
  void read_text(std::string& into) {
    while (at_ < text_.size() && text_[at_] != '<') {
      if (text_[at_] == '&') {
        read_reference(into);
      } else {
        into += text_[at_++];
      }
    }
    if (at_ == text_.size()) refuse("an element without its end");
  }

  void read_reference(std::string& into) {
    const std::size_t end = text_.substr(at_, kMaxReference).find(';');
    if (end == std::string_view::npos) refuse("a reference without its end");
    const std::string_view reference = text_.substr(at_ + 1, end - 1);
    at_ += end + 1;
    if (reference.starts_with('#')) {
      append_utf8(into, code_point(reference.substr(1)));
      return;
    }
    for (const auto& [known, character] :
         {std::pair("amp", '&'), {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}}) {
      if (reference == known) {
        into += character;
        return;
      }
    }
    refuse("an unknown entity");
  }

  std::uint32_t code_point(std::string_view digits) const {
    const bool hexadecimal = digits.starts_with('x');
    if (hexadecimal) digits.remove_prefix(1);
    const std::uint32_t base = hexadecimal ? 16 : 10;
    std::uint32_t point = 0;
    for (const char c : digits) {
      std::uint32_t digit = 16;
      if (c >= '0' && c <= '9') digit = static_cast<std::uint32_t>(c - '0');
      if (c >= 'a' && c <= 'f') digit = static_cast<std::uint32_t>(c - 'a' + 10);
      if (c >= 'A' && c <= 'F') digit = static_cast<std::uint32_t>(c - 'A' + 10);
      if (digit >= base) refuse("a character reference without a number");
      point = point * base + digit;
      if (point > 0x10FFFF) refuse("a character that does not exist");
    }
    if (digits.empty() || point == 0 || (point >= 0xD800 && point < 0xE000)) refuse("a character that does not exist");
    return point;
  }

  std::string name() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_name_character(text_[at_])) ++at_;
    if (at_ == begin) refuse("a tag without a name");
    return std::string(text_.substr(begin, at_ - begin));
  }

  bool skip_space() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
    return at_ != begin;
  }

  bool take(std::string_view expected) {
    if (text_.substr(at_, expected.size()) != expected) return false;
    at_ += expected.size();
    return true;
  }

  [[noreturn]] void refuse(const char* what) const {
    throw Error(ErrorCode::kCorrupt, fmt::format("{}, at byte {} of {} of XML", what, at_, text_.size()));
  }

  static constexpr std::size_t kMaxReference = 12;

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t elements_ = 0;
};

}  // namespace

const XmlElement* XmlElement::child(std::string_view child_name) const {
  for (const XmlElement& element : children) {
    if (element.name == child_name) return &element;
  }
  return nullptr;
}

std::string_view XmlElement::text_of(std::string_view child_name) const {
  const XmlElement* element = child(child_name);
  return element == nullptr ? std::string_view() : std::string_view(element->text);
}

XmlElement parse_xml(std::string_view text) { return XmlParser(text).document(); }

}  // namespace sparsecast
