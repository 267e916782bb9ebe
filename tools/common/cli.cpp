// SPDX-License-Identifier: Apache-2.0
#include "tools/common/cli.hpp"

#include <fmt/format.h>

#include <exception>

#include "sparsecast/error.hpp"
#include "sparsecast/version.hpp"
#include "tools/common/commands.hpp"
#include "tools/common/external.hpp"

namespace sparsecast::tools {
namespace {

int run_command(const Command& command, Console& console) {
  try {
    return command();
  } catch (const Error& error) {
    console.err << fmt::format("sparsecast: {} [{}]\n", error.what(), to_string(error.code()));
    return exit_code(error.code());
  } catch (const std::bad_alloc&) {
    console.err << "sparsecast: out of memory\n";
    return kExitIo;
  } catch (const std::exception& error) {
    console.err << fmt::format("sparsecast: {}\n", error.what());
    return kExitBadInput;
  }
}

constexpr const char* kAbout =
    "sparsecast: what changed between two checkpoints, bit for bit, as a small file (.scd)\n\n"
    "A checkpoint is a .safetensors file, or a directory with model.safetensors.index.json.";

constexpr const char* kTour =
    "A tour:\n"
    "  sparsecast diff step_100.safetensors step_101.safetensors -o 101.scd\n"
    "  sparsecast inspect 101.scd --tensors\n"
    "  sparsecast apply step_100.safetensors 101.scd -o copy_101.safetensors\n"
    "  sparsecast compare step_101.safetensors copy_101.safetensors\n\n"
    "`sparsecast COMMAND --help` explains each command.\n"
    "Exit codes: 0 good, 1 differs or a check failed, 2 usage, 3 bad input, 4 input/output, 5 fenced, 6 distrusted.";

}  // namespace

int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::kIo:
      return kExitIo;
    case ErrorCode::kUsage:
      return kExitUsage;
    case ErrorCode::kTimeout:
      return kExitIo;
    case ErrorCode::kFenced:
      return kExitFenced;
    case ErrorCode::kUnsigned:
    case ErrorCode::kForeignKey:
    case ErrorCode::kReplayed:
    case ErrorCode::kRolledBack:
    case ErrorCode::kMixed:
    case ErrorCode::kExpired:
      return kExitDistrusted;
    default:
      return kExitBadInput;
  }
}

int run_cli(const std::vector<std::string>& arguments, Console& console) {
  // Before any parsing: options after the name, --help among them, are the program's.
  if (!arguments.empty() && is_external_command(arguments[0])) {
    return run_command([&]() -> int { run_external_command(arguments, console); }, console);
  }
  Parser app(kAbout, "sparsecast");
  app.footer(kTour);
  app.set_version_flag(fmt::format("sparsecast {}", version_string()));
  app.require_subcommand(1);
  std::vector<AddedCommand> commands = {add_diff(app, console),    add_apply(app, console),  add_inspect(app, console),
                                        add_compose(app, console), add_invert(app, console), add_digest(app, console),
                                        add_compare(app, console), add_doctor(app, console), add_plan(app, console),
                                        add_convert(app, console)};
#ifdef SPARSECAST_HAVE_LOG
  commands.push_back(add_log(app, console));
#endif
  add_external_commands(app);
  int parse_result = 0;
  if (!app.parse(arguments, console.out, console.err, parse_result)) return parse_result == 0 ? kExitGood : kExitUsage;
  for (const AddedCommand& command : commands) {
    if (command.parser->parsed()) return run_command(command.run, console);
  }
  return kExitUsage;
}

}  // namespace sparsecast::tools
