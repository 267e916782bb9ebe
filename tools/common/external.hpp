// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/common/cli.hpp"
#include "tools/common/parser.hpp"

namespace sparsecast::tools {

/// Returns whether `name` is a command of the Python package: `sparsecast record` is its program sparsecast-record,
/// `sparsecast control` is sparsecast-control. No other name is ever searched for.
bool is_external_command(const std::string& name);

/// Names the commands of the Python package in the help of `app`.
void add_external_commands(Parser& app);

/// Replaces this process by the program of `arguments[0]`, found on PATH, with the remaining arguments unchanged: exit
/// code, output and signals are those of the program. Returns only by an exception: Error{kUsage} if the program is not
/// installed, Error{kIo} if the system cannot run it.
[[noreturn]] void run_external_command(const std::vector<std::string>& arguments, Console& console);

}  // namespace sparsecast::tools
