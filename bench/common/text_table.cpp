#include "common/text_table.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace sparsecast::bench {

TextTable::TextTable(std::FILE* out, std::vector<Column> columns) : out_(out), columns_(std::move(columns)) {
  for (Column& column : columns_) {
    const auto widest = static_cast<int>(std::max(column.name.size(), column.unit.size()));
    column.width = std::max(column.width, widest);
  }
}

void TextTable::header() const {
  std::string names = "#";
  std::string units = "#";
  for (const Column& column : columns_) {
    names += fmt::format(" {:>{}}", column.name, column.width);
    units += fmt::format(" {:>{}}", column.unit, column.width);
  }
  fmt::print(out_, "{}\n{}\n", names, units);
}

void TextTable::row(const std::vector<std::string>& cells) const {
  std::string line = " ";
  for (std::size_t i = 0; i < columns_.size() && i < cells.size(); ++i) {
    line += fmt::format(" {:>{}}", cells[i], columns_[i].width);
  }
  fmt::print(out_, "{}\n", line);
  std::fflush(out_);
}

}  // namespace sparsecast::bench
