// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "sparsecast/error.hpp"
#include "sparsecast/io.hpp"

namespace sparsecast::tools {

/// Exit codes of the program; scripts may rely on them.
enum ExitCode : int {
  kExitGood = 0,
  kExitDiffers = 1,
  kExitUsage = 2,
  kExitBadInput = 3,
  kExitIo = 4,
  kExitFenced = 5,
  kExitDistrusted = 6,
};

/// What a command works with: files, output streams, and what is known of the terminal.
struct Console {
  FileSystem& fs;
  std::ostream& out;
  std::ostream& err;
  bool terminal = false;  ///< True if `err` is a terminal, so that progress may be drawn there.
  /// True if `out` is a terminal whose locale is UTF-8, so that pictures may use more than ASCII.
  bool unicode = false;
};

/// Returns the exit code of a command that fails with this error.
int exit_code(ErrorCode code);

/// Runs the whole program within this process: parses the arguments (without the name of the program), runs the
/// command, and turns errors into a sentence on `console.err` and an exit code. Never throws.
int run_cli(const std::vector<std::string>& arguments, Console& console);

}  // namespace sparsecast::tools
