// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "tools/common/cli.hpp"
#include "tools/common/parser.hpp"

namespace sparsecast::tools {

/// Function that runs a command with its parsed options, and returns the exit code.
using Command = std::function<int()>;

/// A command that was added to the program's parser, which owns `parser`.
struct AddedCommand {
  Parser* parser;
  Command run;
};

AddedCommand add_diff(Parser& app, Console& console);
AddedCommand add_apply(Parser& app, Console& console);
AddedCommand add_inspect(Parser& app, Console& console);
AddedCommand add_compose(Parser& app, Console& console);
AddedCommand add_invert(Parser& app, Console& console);
AddedCommand add_digest(Parser& app, Console& console);
AddedCommand add_compare(Parser& app, Console& console);
AddedCommand add_doctor(Parser& app, Console& console);
AddedCommand add_convert(Parser& app, Console& console);
AddedCommand add_plan(Parser& app, Console& console);
AddedCommand add_log(Parser& app, Console& console);  ///< Only in builds with SPARSECAST_WITH_LOG.

}  // namespace sparsecast::tools
