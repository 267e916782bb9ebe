// SPDX-License-Identifier: Apache-2.0
#pragma once

// The subcommands of `sparsecast log`, each in a file of its own.

#include "tools/common/commands.hpp"

namespace sparsecast::tools {

AddedCommand add_log_init(Parser& log, Console& console);
AddedCommand add_log_keygen(Parser& log, Console& console);
AddedCommand add_log_keys(Parser& log, Console& console);
AddedCommand add_log_publish(Parser& log, Console& console);
AddedCommand add_log_pull(Parser& log, Console& console);
AddedCommand add_log_follow(Parser& log, Console& console);
AddedCommand add_log_status(Parser& log, Console& console);
AddedCommand add_log_verify(Parser& log, Console& console);
AddedCommand add_log_anchor(Parser& log, Console& console);
AddedCommand add_log_compact(Parser& log, Console& console);
AddedCommand add_log_gc(Parser& log, Console& console);

}  // namespace sparsecast::tools
