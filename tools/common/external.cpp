// SPDX-License-Identifier: Apache-2.0
#include "tools/common/external.hpp"
#include "tools/common/parser.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "sparsecast/error.hpp"

namespace sparsecast::tools {
namespace {

struct External {
  const char* name;
  const char* about;
};

constexpr std::array<External, 2> kExternals = {{
    {"record", "Analyse traces of training, or make real ones (program sparsecast-record of the Python package)"},
    {"control", "Serve and steer trainers and engines (program sparsecast-control of the Python package)"},
}};

}  // namespace

bool is_external_command(const std::string& name) {
  return std::any_of(kExternals.begin(), kExternals.end(),
                     [&](const External& external) { return name == external.name; });
}

void add_external_commands(Parser& app) {
  for (const External& external : kExternals) app.add_subcommand(external.name, external.about);
}

void run_external_command(const std::vector<std::string>& arguments, Console& console) {
  const std::string program = "sparsecast-" + arguments.at(0);
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin() + 1, arguments.end());
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  console.out.flush();
  console.err.flush();
  ::execvp(program.c_str(), argv.data());
  const int reason = errno;
  if (reason == ENOENT) {
    throw Error(ErrorCode::kUsage, fmt::format("'{}' is the program {}, which is not on the PATH; it comes with the "
                                               "Python package (pip install sparsecast)",
                                               arguments[0], program));
  }
  throw Error(ErrorCode::kIo, std::generic_category().message(reason), program);
}

}  // namespace sparsecast::tools
