// SPDX-License-Identifier: Apache-2.0

// sparsecast diff: makes a delta from two checkpoints, or from a checkpoint and a sparse step.

#include <fmt/format.h>

#include <chrono>

#include "checkpoint/checkpoint_apply.hpp"
#include "sparsecast/publisher.hpp"
#include "tools/common/commands.hpp"
#include "tools/common/options.hpp"
#include "tools/common/progress.hpp"
#include "tools/common/report.hpp"
#include "tools/delta/diff_target.hpp"

namespace sparsecast::tools {
namespace {

struct DiffFlags {
  std::string base;
  std::string target;
  EncodeFlags encode;
  DTypeFlags dtypes;
  std::uint64_t base_version = 0;
  std::uint64_t version = 1;
  std::string stream;
  bool json = false;
};

void print_summary(Console& console, const DiffFlags& flags, const TensorTable& table, const DeltaHeader& header,
                   const CommitRecord& commit, std::uint64_t delta_bytes, double seconds) {
  const auto changed = static_cast<double>(commit.changed);
  const double density = ratio(changed, static_cast<double>(table.elements()));
  const double per_change = ratio(static_cast<double>(delta_bytes), changed);
  const double smaller = ratio(static_cast<double>(table.bytes()), static_cast<double>(delta_bytes));
  Report report;
  report.add("delta", flags.encode.output, "delta");
  report.add("base_version", header.base_version, "");
  report.add("version", header.version, "version", fmt::format("{} -> {}", header.base_version, header.version));
  report.add("tensors", std::uint64_t{table.size()}, "tensors");
  report.add("elements", table.elements(), "elements");
  report.add("changed", commit.changed, "changed");
  report.add("density", density, "density", human_percent(density));
  report.add("dense_bytes", table.bytes(), "dense bytes",
             fmt::format("{} ({})", human_count(table.bytes()), human_bytes(table.bytes())));
  report.add("delta_bytes", delta_bytes, "delta bytes",
             fmt::format("{} ({})", human_count(delta_bytes), human_bytes(delta_bytes)));
  report.add("bytes_per_change", per_change, "bytes per change", fmt::format("{:.4f}", per_change));
  report.add("ratio", smaller, "ratio", fmt::format("{:.4g} times smaller than dense", smaller));
  report.add("frames", std::uint64_t{commit.frames}, "frames");
  report.add("base_digest", header.base_digest.value, "base digest");
  report.add("result_digest", commit.result_digest.value, "result digest");
  report.add("seconds", seconds, "time", human_seconds(seconds));
  report.print(console, flags.json);
}

int run_diff(Console& console, const DiffFlags& flags) {
  const auto began = std::chrono::steady_clock::now();
  if (flags.version == flags.base_version) {
    throw Error(ErrorCode::kUsage, "--version and --base-version must differ");
  }
  DeltaHeader header;
  header.base_version = flags.base_version;
  header.version = flags.version;
  if (!flags.stream.empty()) header.stream = hash_from_hex(flags.stream);

  ProgressBar bar(console);
  const Progress progress = bar.callback();
  require_not_interrupted(console.fs, flags.base);
  Checkpoint base = Checkpoint::open(console.fs, flags.base);
  flags.dtypes.declare(base);
  const std::unique_ptr<DiffTarget> target = open_diff_target(console.fs, flags.target, base, flags.base);
  DeltaOutput output(console.fs, flags.encode.output);
  {
    const CheckpointStore store(base);
    header.base_digest = sum(digest_store(store, flags.encode.threads, progress));
  }
  const std::uint64_t elements = base.table().elements();
  const CommitRecord commit = encode_delta(base.table(), *target->detector, header, flags.encode.options(), true,
                                           output.sink(), [&](std::uint64_t done) {
                                             if (progress) progress("comparing", done, elements);
                                           });
  output.commit();
  bar.wipe();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  print_summary(console, flags, base.table(), header, commit, output.bytes(), seconds);
  return kExitGood;
}

}  // namespace

AddedCommand add_diff(Parser& app, Console& console) {
  auto flags = std::make_shared<DiffFlags>();
  Parser* parser = app.add_subcommand("diff", "Write what changed from BASE to NEW as a delta");
  parser->add_option("base", flags->base, "The checkpoint that receivers hold")->required()->type_name("BASE");
  parser->add_option("new", flags->target, "The checkpoint after it, or a sparse step (NAME.indices, NAME.values)")
      ->required()
      ->type_name("NEW");
  flags->encode.add_to(*parser, true);
  flags->dtypes.add_to(*parser);
  parser->add_option("--base-version", flags->base_version, "Version number of BASE")->capture_default_str();
  parser->add_option("--version", flags->version, "Version number of NEW")->capture_default_str();
  parser->add_option("--stream", flags->stream, "Stream id, 32 hexadecimal digits; default: from the tensor table");
  add_json(*parser, flags->json);
  parser->footer(
      "Both must hold the same tensors (names, dtypes, shapes). Values are compared as bits: a NaN that stays is no\n"
      "change, +0 and -0 differ. Applying the delta to BASE gives NEW, bit for bit.\n\n"
      "Examples:\n"
      "  sparsecast diff step_100.safetensors step_101.safetensors -o 101.scd\n"
      "  sparsecast diff model_dir/ sparse_step_13.safetensors -o 13.scd --base-version 12 --version 13 --zstd 3");
  return {parser, [flags, &console] { return run_diff(console, *flags); }};
}

}  // namespace sparsecast::tools
