// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

namespace sparsecast::test {
namespace {

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(TraceNames, AreAllInTheTable) {
  const std::filesystem::path root = SPARSECAST_SOURCE_DIR;
  std::set<std::string> names;
  for (const char* folder : {"src", "cuda"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file() || entry.path().filename() == "trace.hpp") continue;
      const std::string text = read_text(entry.path());
      const std::string before = "TraceRange<\"";
      for (std::size_t at = text.find(before); at != std::string::npos; at = text.find(before, at + 1)) {
        const std::size_t begin = at + before.size();
        names.insert(text.substr(begin, text.find('"', begin) - begin));
      }
    }
  }
  EXPECT_GE(names.size(), 18U);
  const std::string table = read_text(root / "docs/tracing.md");
  for (const std::string& name : names) {
    EXPECT_NE(table.find("\n| `" + name + "` |"), std::string::npos) << name << " is missing in docs/tracing.md";
  }
}

}  // namespace
}  // namespace sparsecast::test
