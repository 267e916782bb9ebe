// SPDX-License-Identifier: Apache-2.0

// sparsecast log verify: verifies everything that a log holds.

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>

#include "sparsecast/error.hpp"
#include "tools/common/options.hpp"
#include "tools/common/progress.hpp"
#include "tools/common/report.hpp"
#include "tools/log/log_commands.hpp"
#include "tools/log/log_open.hpp"

namespace sparsecast::tools {
namespace {

struct VerifyFlags {
  LogFlags log;
  std::string scratch = "/tmp";
  std::string max_age = "0";
  bool anchors = true;
  bool json = false;
  int threads = 0;
};

nlohmann::ordered_json problem_rows(const LogVerifyReport& found) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const LogProblem& problem : found.problems) {
    rows.push_back({{"object", problem.key}, {"error", to_string(problem.code)}, {"text", problem.message}});
  }
  return rows;
}

void print_report(Console& console, const VerifyFlags& flags, const std::string& location, const LogVerifyReport& found,
                  double seconds) {
  const bool good = found.problem_count == 0;
  Report report;
  report.add("log", location, "log");
  report.add("good", good, "", "");
  report.add("first", found.first, "", "");
  report.add("floor", found.floor, "kept from version");
  report.add("version", found.head, "head");
  report.add("epoch", found.epoch, "epoch");
  report.add("commits", found.commits, "commits");
  report.add("deltas", found.deltas, "deltas");
  report.add("merged", found.merged, "merged deltas");
  report.add("anchors", found.anchors, flags.anchors ? "anchors" : "");
  report.add("bytes", found.bytes, "bytes read", human_bytes(found.bytes));
  report.add("problems", found.problem_count, "result",
             good ? std::string("good") : fmt::format("{} PROBLEMS", human_count(found.problem_count)));
  report.add("problem_rows", problem_rows(found), "", "");
  report.add("seconds", seconds, "time", human_seconds(seconds));
  report.print(console, flags.json);
}

int run_verify(Console& console, const VerifyFlags& flags) {
  const auto began = std::chrono::steady_clock::now();
  ProgressBar bar(console);
  LogTrust trust = flags.log.pinned(console.fs);
  trust.max_age = parse_duration(flags.max_age);
  LogVerifyOptions options;
  options.anchors = flags.anchors;
  options.threads = flags.threads;
  if (const Progress progress = bar.callback()) {
    options.progress = [progress](std::uint64_t done, std::uint64_t total) { progress("verifying", done, total); };
  }
  const std::shared_ptr<ObjectStore> store = open_object_store(console.fs, flags.log.location);
  const TemporaryDirectory scratch(console.fs, fmt::format("{}/sparsecast-verify-{}", flags.scratch, ::getpid()));
  const LogVerifyReport found = verify_log(store, trust, console.fs, scratch.path(), options);
  bar.wipe();
  for (const LogProblem& problem : found.problems) {
    console.err << fmt::format("sparsecast: {}: {}: {} [{}]\n", store->location(), problem.key, problem.message,
                               to_string(problem.code));
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  print_report(console, flags, store->location(), found, seconds);
  if (found.problem_count == 0) return kExitGood;
  return found.problems.empty() ? static_cast<int>(kExitBadInput) : exit_code(found.problems.front().code);
}

}  // namespace

AddedCommand add_log_verify(Parser& log, Console& console) {
  auto flags = std::make_shared<VerifyFlags>();
  Parser* parser = log.add_subcommand("verify", "Verify everything that a log holds");
  flags->log.add_to(*parser);
  add_duration(*parser, "--max-age", flags->max_age, "Fail when the newest version is older; 0: any age");
  parser->add_flag("!--no-anchors", flags->anchors, "Leave anchors out: they are what takes long");
  parser->add_option("--scratch", flags->scratch, "Where temporary files may lie: room for the largest anchor")
      ->capture_default_str()
      ->type_name("DIR");
  add_threads(*parser, flags->threads);
  add_json(*parser, flags->json);
  parser->footer(
      "Every commit to the first; every delta, merged delta and anchor that is kept: by its hash, to its last block,\n"
      "and by the digests of the commits at its ends. Each problem is a line on stderr, and the exit code is that of\n"
      "the first.\n\n"
      "Example:\n"
      "  sparsecast log verify /shared/log --trust publisher.pub");
  return {parser, [flags, &console] { return run_verify(console, *flags); }};
}

}  // namespace sparsecast::tools
