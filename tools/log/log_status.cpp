// SPDX-License-Identifier: Apache-2.0

// sparsecast log status: summarises a log.

#include "tools/common/options.hpp"
#include "tools/log/log_commands.hpp"
#include "tools/log/log_forms.hpp"

namespace sparsecast::tools {
namespace {

struct StatusFlags {
  LogFlags log;
  std::uint64_t versions = 256;
  bool json = false;
};

int run_status(Console& console, const StatusFlags& flags) {
  OpenLog log(console.fs, flags.log);
  const LogSurvey survey = survey_log(log, flags.versions);
  if (flags.json) {
    console.out << status_json(survey).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
  } else {
    print_status(survey, console.unicode, console.out);
  }
  return kExitGood;
}

}  // namespace

AddedCommand add_log_status(Parser& log, Console& console) {
  auto flags = std::make_shared<StatusFlags>();
  Parser* parser = log.add_subcommand("status", "Show a log at a glance");
  flags->log.add_to(*parser);
  parser->add_option("--versions", flags->versions, "How many of the newest versions to show")
      ->check(Condition::range(1, 1'000'000))
      ->capture_default_str()
      ->type_name("N");
  add_json(*parser, flags->json);
  parser->footer(
      "Reads records and lists objects; nothing is written to the log.\n\n"
      "Examples:\n"
      "  sparsecast log status /shared/log\n"
      "  sparsecast log status s3://bucket/run-7 --versions 500 --json > log.json");
  return {parser, [flags, &console] { return run_status(console, *flags); }};
}

}  // namespace sparsecast::tools
