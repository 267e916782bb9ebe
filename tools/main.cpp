// SPDX-License-Identifier: Apache-2.0
#include <langinfo.h>
#include <sys/resource.h>
#include <unistd.h>

#include <clocale>
#include <cstring>
#include <iostream>

#include "tools/common/cli.hpp"

namespace {

/// Returns whether stdout is a terminal with UTF-8. Only characters follow the locale of the user; numbers are the same
/// everywhere.
bool draws_unicode() {
  return isatty(STDOUT_FILENO) == 1 && std::setlocale(LC_CTYPE, "") != nullptr &&
         std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

/// Allows as many open files as the system does: checkpoints may have hundreds, and two of them are compared.
void allow_open_files() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace sparsecast;
  allow_open_files();
  tools::Console console{FileSystem::posix(), std::cout, std::cerr, isatty(STDERR_FILENO) == 1, draws_unicode()};
  const int code = tools::run_cli(std::vector<std::string>(argv + 1, argv + argc), console);
  std::cout.flush();
  return code == tools::kExitGood && !std::cout ? tools::kExitIo : code;
}
