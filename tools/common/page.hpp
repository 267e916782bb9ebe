// SPDX-License-Identifier: Apache-2.0
#pragma once

// HTML pages that commands write (`--html`): their common style, markup and tables.

#include <string>
#include <string_view>
#include <vector>

#include "sparsecast/io.hpp"

namespace sparsecast::tools {

/// Throws Error{kUsage} if `path` exists and is not a page that a command wrote earlier.
void require_page(FileSystem& fs, const std::string& path);
void write_page(FileSystem& fs, const std::string& path, const std::string& page);

/// Returns the start of a page up to its heading, with the common style sheet and `style`. Well-formed XML as well,
/// which everything that follows must be too.
std::string page_start(const std::string& title, const std::string& style = {});
std::string page_end();

/// Escapes text for content and attributes of XML and HTML. Control characters, which XML cannot represent, and bytes
/// that are not UTF-8 become U+FFFD.
std::string escape_markup(std::string_view text);

/// Builds a table of a page, row by row.
class PageTable {
 public:
  /// `left` says for each column whether it holds text, aligned left, or numbers, aligned right.
  PageTable(const std::vector<std::string>& heading, std::vector<bool> left);
  void add(const std::vector<std::string>& row) { add_row(row, "td"); }
  std::string end() { return std::move(out_) + "</tbody></table></div>\n"; }

 private:
  void add_row(const std::vector<std::string>& row, const char* cell);

  std::vector<bool> left_;
  std::string out_;
};

}  // namespace sparsecast::tools
