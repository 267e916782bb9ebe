#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "sparsecast/error.hpp"
#include "sparsecast/io.hpp"

namespace sparsecast::tools {

/// What scripts may rely on.
enum ExitCode : int {
  kExitGood = 0,
  kExitDiffers = 1,
  kExitUsage = 2,
  kExitBadInput = 3,
  kExitIo = 4,
  kExitFenced = 5,
  kExitDistrusted = 6,
};

/// The world around a command.
struct Console {
  FileSystem& fs;
  std::ostream& out;
  std::ostream& err;
  bool terminal = false;  ///< `err` is a terminal: progress may be drawn there.
  bool unicode = false;   ///< `out` is a terminal whose locale is UTF-8: pictures may use more than ASCII.
};

/// How a command that fails with this error ends.
int exit_code(ErrorCode code);

/// The whole program without the process: parses the arguments (without the program's name), runs the command, turns
/// errors into a sentence on `console.err` and an exit code. Never throws.
int run_cli(const std::vector<std::string>& arguments, Console& console);

}  // namespace sparsecast::tools
