// SPDX-License-Identifier: Apache-2.0

// sparsecast apply: applies deltas to a copy of a checkpoint, or in place.

#include <fmt/format.h>

#include <chrono>
#include <optional>

#include "checkpoint/checkpoint_apply.hpp"
#include "sparsecast/error.hpp"
#include "tools/common/commands.hpp"
#include "tools/common/options.hpp"
#include "tools/common/progress.hpp"
#include "tools/common/report.hpp"
#include "tools/delta/checkpoint_lock.hpp"

namespace sparsecast::tools {
namespace {

struct ApplyFlags {
  std::string base;
  std::vector<std::string> deltas;
  std::string output;
  bool in_place = false;
  bool recover = false;
  bool force = false;
  bool json = false;
  int threads = 0;
};

void check(const ApplyFlags& flags) {
  const int targets = (flags.output.empty() ? 0 : 1) + (flags.in_place ? 1 : 0) + (flags.recover ? 1 : 0);
  if (targets != 1) throw Error(ErrorCode::kUsage, "apply needs one of -o OUT, --in-place and --recover");
  if (flags.recover != flags.deltas.empty()) {
    throw Error(ErrorCode::kUsage, flags.recover ? "--recover takes no deltas" : "apply needs at least one delta");
  }
  if (flags.force && flags.output.empty()) throw Error(ErrorCode::kUsage, "--force is for -o OUT");
}

void print_summary(Console& console, const ApplyFlags& flags, const CheckpointApplyReport& done, double seconds) {
  Report report;
  report.add("checkpoint", flags.in_place ? flags.base : flags.output, "checkpoint");
  report.add("version", done.version, "version");
  report.add("applied", std::uint64_t{done.applied}, "deltas applied");
  report.add("already_applied", std::uint64_t{done.already_applied}, done.already_applied > 0 ? "already applied" : "");
  report.add("recovered", done.recovered, done.recovered ? "recovered" : "",
             "an interrupted apply was rolled back first");
  report.add("changed", done.changed, "changed");
  report.add("digest", done.digest.value, "digest (verified)");
  report.add("seconds", seconds, "time", human_seconds(seconds));
  report.print(console, flags.json);
}

int run_recover(Console& console, const ApplyFlags& flags, const std::string& base,
                const CheckpointApplyOptions& options) {
  const bool recovered = recover_checkpoint(console.fs, base, options);
  Report report;
  report.add("checkpoint", flags.base, "checkpoint");
  report.add("recovered", recovered, "recovered",
             recovered ? "an interrupted apply was rolled back" : "nothing to recover");
  report.print(console, flags.json);
  return kExitGood;
}

int run_apply(Console& console, const ApplyFlags& flags) {
  check(flags);
  const auto began = std::chrono::steady_clock::now();
  ProgressBar bar(console);
  CheckpointApplyOptions options;
  options.threads = flags.threads;
  options.replace = flags.force;
  options.progress = bar.callback();
  options.note = [&](const std::string& sentence) { bar.say("sparsecast: " + sentence); };

  std::string base = flags.base;
  std::optional<CheckpointLock> lock;
  if (flags.in_place || flags.recover) {
    // A link to a directory is followed once; files that are links are not changed in place.
    if (console.fs.is_directory(base)) base = console.fs.resolved(base);
    if (&console.fs == &FileSystem::posix()) lock.emplace(base);
  }
  if (flags.recover) return run_recover(console, flags, base, options);
  const CheckpointApplyReport done = flags.in_place
                                         ? apply_in_place(console.fs, base, flags.deltas, options)
                                         : apply_to_copy(console.fs, base, flags.deltas, flags.output, options);
  bar.wipe();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  print_summary(console, flags, done, seconds);
  return kExitGood;
}

}  // namespace

AddedCommand add_apply(Parser& app, Console& console) {
  auto flags = std::make_shared<ApplyFlags>();
  Parser* parser = app.add_subcommand("apply", "Apply deltas, in order, to a checkpoint");
  parser->add_option("base", flags->base, "The checkpoint that the first delta starts from")
      ->required()
      ->type_name("BASE");
  parser->add_option("deltas", flags->deltas, "Delta files, each starting where the one before ended")
      ->type_name("DELTA...");
  parser->add_option("-o,--output", flags->output, "Write the result here; BASE is not touched")->type_name("OUT");
  parser->add_flag("--in-place", flags->in_place, "Change BASE itself, safely across crashes");
  parser->add_flag("--recover", flags->recover, "Only roll back an interrupted in-place apply of BASE");
  parser->add_flag("--force", flags->force, "Replace OUT if it exists");
  add_threads(*parser, flags->threads);
  add_json(*parser, flags->json);
  parser->footer(
      "Each delta is verified to its last block, and the base's digest by reading the base, before anything is\n"
      "written; the result's digest is verified by reading the result back. With -o, OUT appears whole or not at all.\n"
      "With --in-place, an undo record lies beside BASE while it is being written (BASE.undo.scd, or\n"
      "sparsecast.undo.scd in a directory); after a crash the next in-place apply, or --recover, takes the\n"
      "unfinished delta back.\n\n"
      "Examples:\n"
      "  sparsecast apply step_100.safetensors 101.scd 102.scd -o step_102.safetensors\n"
      "  sparsecast apply model_dir/ 101.scd --in-place\n"
      "  sparsecast apply model_dir/ --recover");
  return {parser, [flags, &console] { return run_apply(console, *flags); }};
}

}  // namespace sparsecast::tools
