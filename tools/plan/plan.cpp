// SPDX-License-Identifier: Apache-2.0

// sparsecast plan: plans which trainer rank sends what to which engine rank, from their layouts.

#include "sparsecast/error.hpp"
#include "tools/common/commands.hpp"
#include "tools/common/options.hpp"
#include "tools/common/report.hpp"
#include "tools/plan/plan_forms.hpp"
#include "tools/plan/plan_published.hpp"

namespace sparsecast::tools {
namespace {

struct PlanFlags {
  PlanRequest request;
  std::string study;  ///< Path of the folder of layout files; empty without --study.
  Every every;
  bool json = false;
};

void print_json(const nlohmann::ordered_json& json, std::ostream& out) {
  out << json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
}

/// Throws Error{kUsage} for an option that published transfers have an answer of their own to.
void require_study_alone(const PlanFlags& flags) {
  const PlanRequest none;
  const PlanRequest& request = flags.request;
  if (request.trainer_file.empty() && !flags.every.group && !flags.every.rank && request.engines == none.engines &&
      request.scale_down == none.scale_down && request.options.unsent.empty() &&
      request.options.max_groups_per_rank == none.options.max_groups_per_rank &&
      request.density_percent == none.density_percent && request.bytes_per_change == none.bytes_per_change) {
    return;
  }
  throw Error(ErrorCode::kUsage, "its plans and densities are given: only links, --ends and --json go with it",
              "--study");
}

int run_study(Console& console, const PlanFlags& flags) {
  require_study_alone(flags);
  const PublishedStudy study = study_published(console.fs, flags.study, flags.request);
  if (flags.json) {
    print_json(published_json(study), console.out);
  } else {
    print_published(study, console.out);
  }
  return kExitGood;
}

int run_plan(Console& console, const PlanFlags& flags) {
  if (!flags.study.empty()) return run_study(console, flags);
  if (flags.request.engine_file.empty()) {
    throw Error(ErrorCode::kUsage, "layout files of a trainer and an engine are needed: TRAINER ENGINE", "plan");
  }
  const PlanStudy study = study_plan(console.fs, flags.request);
  if (flags.json) {
    print_json(plan_json(study), console.out);
  } else {
    print_plan(study, flags.every, console.out);
  }
  return kExitGood;
}

void add_plan_options(Parser& parser, PlanRequest& request) {
  parser.add_option("--engines", request.engines, "Replicas of the engine, each on nodes of its own")
      ->check(Condition::range(1, 4096))
      ->capture_default_str()
      ->type_name("N");
  parser
      .add_option("--scale-down", request.scale_down,
                  "Divide what the files declare as scalable by this: the same plan in small")
      ->check(Condition::range(1, 1 << 20))
      ->capture_default_str()
      ->type_name("K");
  parser.add_renamed("--max-channels", "--max-groups");
  parser
      .add_option("--max-groups", request.options.max_groups_per_rank,
                  "The most groups (communicators) that a rank may be in")
      ->check(Condition::range(1, 1 << 20))
      ->capture_default_str()
      ->type_name("N");
  parser.add_option("--unsent", request.options.unsent, "Trainer tensors that no engine holds are good (* and ?)")
      ->allow_extra_args(false)
      ->type_name("PATTERN");
}

void add_model_options(Parser& parser, PlanRequest& request) {
  parser.add_option("--bandwidth", request.world_gigabytes_per_second, "Bandwidth of a rank between nodes, GB/s")
      ->check(Condition::positive())
      ->capture_default_str()
      ->type_name("GB/S");
  parser.add_option("--node-bandwidth", request.node_gigabytes_per_second, "Bandwidth of a rank inside its node, GB/s")
      ->check(Condition::positive())
      ->capture_default_str()
      ->type_name("GB/S");
  parser.add_option("--latency", request.latency_microseconds, "Latency of a transfer or a vote, microseconds")
      ->check(Condition::non_negative())
      ->capture_default_str()
      ->type_name("US");
  parser.add_option("--density", request.density_percent, "Elements that a sync changes, percent")
      ->check(Condition::range(0.0, 100.0))
      ->capture_default_str()
      ->type_name("PERCENT");
  parser.add_option("--ends", request.ends, "Where the weights lie: device or host")
      ->check(Condition::one_of({"device", "host"}))
      ->capture_default_str()
      ->type_name("ENDS");
  parser.add_option("--bytes-per-change", request.bytes_per_change, "Bytes of a delta for each changed element")
      ->check(Condition::non_negative())
      ->capture_default_str()
      ->type_name("BYTES");
}

}  // namespace

AddedCommand add_plan(Parser& app, Console& console) {
  auto flags = std::make_shared<PlanFlags>();
  Parser* parser = app.add_subcommand("plan", "Who sends what to whom, from a trainer's layout and an engine's");
  parser->add_option("trainer", flags->request.trainer_file, "The trainer's layout file")->type_name("TRAINER");
  parser->add_option("engine", flags->request.engine_file, "The engine's layout file")->type_name("ENGINE");
  add_plan_options(*parser, flags->request);
  add_model_options(*parser, flags->request);
  parser->add_renamed("--channels", "--groups");
  parser->add_flag("--groups", flags->every.group, "Print a row for every group, however many there are");
  parser->add_flag("--ranks", flags->every.rank, "Print bytes and memory of every rank");
  parser
      ->add_option("--study", flags->study,
                   "Instead of TRAINER and ENGINE: predict transfers that others have published, then syncs by the "
                   "same plans, from the layout files in this folder")
      ->type_name("LAYOUTS");
  add_json(*parser, flags->json);
  parser->footer(
      "Layout files: docs/layout-format.md; the plan: docs/fanout.md. World ranks are the trainer's, then the "
      "engines'.\n"
      "Times are a prediction from the given links and from what is known of the work of ranks.\n\n"
      "Examples:\n"
      "  sparsecast plan layouts/qwen2.5-7b.fsdp2-dp8.json layouts/qwen2.5-7b.vllm-tp4.json --engines 2\n"
      "  sparsecast plan trainer.json engine.json --bandwidth 25 --json > plan.json\n"
      "  sparsecast plan --study layouts");
  return {parser, [flags, &console] { return run_plan(console, *flags); }};
}

}  // namespace sparsecast::tools
