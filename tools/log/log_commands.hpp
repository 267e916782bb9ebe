#pragma once

// The subcommands of `sparsecast log`, each in a file of its own.

#include "tools/common/commands.hpp"

namespace sparsecast::tools {

AddedCommand add_log_init(CLI::App& log, Console& console);
AddedCommand add_log_keygen(CLI::App& log, Console& console);
AddedCommand add_log_keys(CLI::App& log, Console& console);
AddedCommand add_log_publish(CLI::App& log, Console& console);
AddedCommand add_log_pull(CLI::App& log, Console& console);
AddedCommand add_log_follow(CLI::App& log, Console& console);
AddedCommand add_log_status(CLI::App& log, Console& console);
AddedCommand add_log_verify(CLI::App& log, Console& console);
AddedCommand add_log_anchor(CLI::App& log, Console& console);
AddedCommand add_log_compact(CLI::App& log, Console& console);
AddedCommand add_log_gc(CLI::App& log, Console& console);

}  // namespace sparsecast::tools
