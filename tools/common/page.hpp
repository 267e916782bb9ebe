#pragma once

// What the pages that commands write (`--html`) have in common.

#include <string>
#include <string_view>
#include <vector>

#include "sparsecast/io.hpp"

namespace sparsecast::tools {

/// A page that is there is replaced; any other file is not: Error{kUsage}.
void require_page(FileSystem& fs, const std::string& path);
void write_page(FileSystem& fs, const std::string& path, const std::string& page);

/// Up to the heading, with the style sheet that all pages share and what `style` adds. Well-formed XML too, as
/// everything that follows must be.
std::string page_start(const std::string& title, const std::string& style = {});
std::string page_end();

/// For text and attributes of XML and HTML; control characters, which XML cannot say, and bytes that are no UTF-8
/// become U+FFFD.
std::string escape_markup(std::string_view text);

/// A table of a page, row by row.
class PageTable {
 public:
  /// The columns in `left` hold text, the others numbers.
  PageTable(const std::vector<std::string>& heading, std::vector<bool> left);
  void add(const std::vector<std::string>& row) { add_row(row, "td"); }
  std::string end() { return std::move(out_) + "</tbody></table></div>\n"; }

 private:
  void add_row(const std::vector<std::string>& row, const char* cell);

  std::vector<bool> left_;
  std::string out_;
};

}  // namespace sparsecast::tools
