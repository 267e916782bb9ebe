// SPDX-License-Identifier: Apache-2.0

// sparsecast log: publishes, follows and maintains deltas as durable objects in a directory or a bucket.

#include "tools/log/log_commands.hpp"

namespace sparsecast::tools {

AddedCommand add_log(Parser& app, Console& console) {
  Parser* parser = app.add_subcommand("log", "Publish and follow deltas in a directory or an S3 bucket");
  parser->require_subcommand(1);
  parser->footer(
      "LOG is a directory, or s3://bucket/prefix with the usual variables and files for credentials.\n\n"
      "A tour:\n"
      "  sparsecast log init /shared/log step_100.safetensors\n"
      "  sparsecast log publish /shared/log step_101.safetensors --base step_100.safetensors\n"
      "  sparsecast log follow /shared/log /local/model --lease engine-1   (on another machine)\n"
      "  sparsecast log status /shared/log");
  const std::vector<AddedCommand> commands = {
      add_log_init(*parser, console),   add_log_publish(*parser, console), add_log_pull(*parser, console),
      add_log_follow(*parser, console), add_log_status(*parser, console),  add_log_verify(*parser, console),
      add_log_anchor(*parser, console), add_log_compact(*parser, console), add_log_gc(*parser, console),
      add_log_keygen(*parser, console), add_log_keys(*parser, console)};
  return {parser, [commands] {
            for (const AddedCommand& command : commands) {
              if (command.parser->parsed()) return command.run();
            }
            return static_cast<int>(kExitUsage);
          }};
}

}  // namespace sparsecast::tools
