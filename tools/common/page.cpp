// SPDX-License-Identifier: Apache-2.0
#include "tools/common/page.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <span>

#include "core/utf8.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::tools {
namespace {

constexpr char kPageStart[] = "<!DOCTYPE html>";

constexpr const char* kStyle = R"(
:root{color-scheme:light dark;--page:#fff;--text:#1c1c1e;--soft:#6b6b70;--line:#d8d8dc;--box:#55555a}
@media (prefers-color-scheme:dark){:root{--page:#17171a;--text:#ececf0;--soft:#9a9aa2;--line:#3a3a40;--box:#b4b4bc}}
body{margin:2rem auto;max-width:1240px;padding:0 1rem;background:var(--page);color:var(--text);
font:15px/1.45 system-ui,sans-serif}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}
svg{width:100%;height:auto;font:11px system-ui,sans-serif}
svg text{fill:var(--text);paint-order:stroke;stroke:var(--page);stroke-width:3px;stroke-linejoin:round}
svg .heading{font-weight:bold}.box{fill:var(--box)}.band{fill-opacity:.4}.band:hover{fill-opacity:.75}
.tick{stroke:var(--line);fill:none}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:13px}
th,td{padding:.2rem .7rem;border-bottom:1px solid var(--line);text-align:right;vertical-align:top;
font-variant-numeric:tabular-nums}
th{color:var(--soft);font-weight:600}.left{text-align:left}dl{display:grid;grid-template-columns:max-content 1fr;
gap:.15rem 1rem}dt{color:var(--soft)}dd{margin:0}.note{color:var(--soft)}
)";

}  // namespace

void require_page(FileSystem& fs, const std::string& path) {
  if (!fs.exists(path)) return;
  if (fs.is_directory(path)) throw Error(ErrorCode::kUsage, "the output is a directory", path);
  const std::unique_ptr<File> file = fs.open(path, OpenMode::kRead);
  std::array<std::byte, sizeof(kPageStart) - 1> start{};
  if (file->size() >= start.size()) file->read_at(0, start);
  if (file->size() != 0 && std::memcmp(start.data(), kPageStart, start.size()) != 0) {
    throw Error(ErrorCode::kUsage, "exists and is no HTML page; it is not overwritten", path);
  }
}

void write_page(FileSystem& fs, const std::string& path, const std::string& page) {
  AtomicFile file(fs, path);
  file.append(std::as_bytes(std::span<const char>(page)));
  file.commit();
}

std::string page_start(const std::string& title, const std::string& style) {
  return fmt::format(
      "{0}\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\"><head><meta charset=\"utf-8\"/>"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{1}</title>"
      "<style>{2}{3}</style></head>\n<body>\n<h1>{1}</h1>\n",
      kPageStart, escape_markup(title), kStyle, style);
}

std::string page_end() { return "</body></html>\n"; }

std::string escape_markup(std::string_view text) {
  const bool readable = is_utf8(text);
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        if (byte < 0x20 || byte == 0x7f || (byte >= 0x80 && !readable)) {
          out += "\xef\xbf\xbd";
        } else {
          out += c;
        }
    }
  }
  return out;
}

PageTable::PageTable(const std::vector<std::string>& heading, std::vector<bool> left) : left_(std::move(left)) {
  out_ = "<div class=\"scroll\"><table>\n<thead>";
  add_row(heading, "th");
  out_ += "</thead>\n<tbody>\n";
}

void PageTable::add_row(const std::vector<std::string>& row, const char* cell) {
  out_ += "<tr>";
  for (std::size_t c = 0; c < row.size(); ++c) {
    out_ += fmt::format("<{0}{1}>{2}</{0}>", cell, left_[c] ? " class=\"left\"" : "", escape_markup(row[c]));
  }
  out_ += "</tr>\n";
}

}  // namespace sparsecast::tools
