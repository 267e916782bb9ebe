#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "tools/common/cli.hpp"

namespace sparsecast::tools {

/// A command that has been added to the parser: runs with what was parsed and returns the exit code.
using Command = std::function<int()>;

struct AddedCommand {
  CLI::App* parser;
  Command run;
};

AddedCommand add_diff(CLI::App& app, Console& console);
AddedCommand add_apply(CLI::App& app, Console& console);
AddedCommand add_inspect(CLI::App& app, Console& console);
AddedCommand add_compose(CLI::App& app, Console& console);
AddedCommand add_invert(CLI::App& app, Console& console);
AddedCommand add_digest(CLI::App& app, Console& console);
AddedCommand add_compare(CLI::App& app, Console& console);
AddedCommand add_doctor(CLI::App& app, Console& console);
AddedCommand add_convert(CLI::App& app, Console& console);
AddedCommand add_plan(CLI::App& app, Console& console);
AddedCommand add_log(CLI::App& app, Console& console);  ///< In builds with SPARSECAST_WITH_LOG.

}  // namespace sparsecast::tools
