#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "sparsecast/io.hpp"

namespace sparsecast::tools {

/// What scripts may rely on.
enum ExitCode : int {
  kExitGood = 0,
  kExitDiffers = 1,
  kExitUsage = 2,
  kExitBadInput = 3,
  kExitIo = 4,
};

/// The world around a command. `terminal`: `err` is a terminal, so progress may be drawn there.
struct Console {
  FileSystem& fs;
  std::ostream& out;
  std::ostream& err;
  bool terminal = false;
};

/// The whole program without the process: parses the arguments (without the program's name), runs the command, turns
/// errors into a sentence on `console.err` and an exit code. Never throws.
int run_cli(const std::vector<std::string>& arguments, Console& console);

}  // namespace sparsecast::tools
