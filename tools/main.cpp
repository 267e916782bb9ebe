#include <unistd.h>

#include <iostream>

#include "tools/cli.hpp"

int main(int argc, char** argv) {
  using namespace sparsecast;
  tools::Console console{FileSystem::posix(), std::cout, std::cerr, isatty(STDERR_FILENO) == 1};
  const int code = tools::run_cli(std::vector<std::string>(argv + 1, argv + argc), console);
  std::cout.flush();
  return code == tools::kExitGood && !std::cout ? tools::kExitIo : code;
}
