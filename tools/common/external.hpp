#pragma once

#include <string>
#include <vector>

#include "tools/common/cli.hpp"
#include "tools/common/parser.hpp"

namespace sparsecast::tools {

/// `sparsecast record ...` and `sparsecast control ...` are programs of the Python package, `sparsecast-record` and
/// `sparsecast-control`. No other name is ever looked for.
bool is_external_command(const std::string& name);

/// Lists them in the help of `app`.
void add_external_commands(Parser& app);

/// Becomes the program of `arguments[0]`, found on PATH, which gets the other arguments as they are: its exit code,
/// output and signals are the command's own. Returns only by an exception: Error{kUsage} when it is not installed,
/// Error{kIo} when the system refuses to run it.
[[noreturn]] void run_external_command(const std::vector<std::string>& arguments, Console& console);

}  // namespace sparsecast::tools
