#pragma once

#include <cstdio>
#include <string>
#include <vector>

namespace sparsecast::bench {

/// A table in the manner of nccl-tests: right-aligned columns under two comment lines, names and units. Rows are
/// written as they come.
class TextTable {
 public:
  struct Column {
    std::string name;
    std::string unit;
    int width;  ///< At least; longer cells push the row to the right.
  };

  TextTable(std::FILE* out, std::vector<Column> columns);
  void header() const;
  void row(const std::vector<std::string>& cells) const;

 private:
  std::FILE* out_;
  std::vector<Column> columns_;
};

}  // namespace sparsecast::bench
