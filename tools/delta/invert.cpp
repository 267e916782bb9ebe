// SPDX-License-Identifier: Apache-2.0

// sparsecast invert: makes the delta that undoes another.

#include <fmt/format.h>

#include "checkpoint/checkpoint_apply.hpp"
#include "checkpoint/table_difference.hpp"
#include "checkpoint/undo_record.hpp"
#include "codec/frame_reader.hpp"
#include "sparsecast/delta.hpp"
#include "tools/common/commands.hpp"
#include "tools/common/options.hpp"
#include "tools/common/progress.hpp"
#include "tools/common/report.hpp"
#include "tools/delta/delta_base.hpp"

namespace sparsecast::tools {
namespace {

struct InvertFlags {
  std::string delta;
  std::string base;
  EncodeFlags encode;
  bool json = false;
};

/// Opens the base and verifies that the delta starts from it: raw values of another checkpoint would be meaningless.
CheckpointStore open_store(Console& console, const InvertFlags& flags, const DeltaFile& delta,
                           const Progress& progress) {
  require_not_interrupted(console.fs, flags.base);
  CheckpointLayout layout = CheckpointLayout::of(Checkpoint::open(console.fs, flags.base));
  layout.table = with_pairs(layout.table, pairs_of(delta.table()));
  CheckpointStore store(console.fs, std::move(layout), OpenMode::kRead);
  require_same_table(store.table(), flags.base, delta.table(), flags.delta);
  const StateDigest digest = sum(digest_store(store, flags.encode.threads, progress));
  require_base(digest, flags.base, delta);
  return store;
}

int run_invert(Console& console, const InvertFlags& flags) {
  const DeltaFile delta = DeltaFile::open(console.fs, flags.delta);
  const EncodeOptions options = flags.encode.options();
  const bool raw = delta.header().values == ValueCodec::kRaw;
  const bool context =
      delta.header().positions == PositionMode::kContext || options.positions == PositionMode::kContext;
  if (raw && flags.base.empty()) {
    throw Error(ErrorCode::kUsage,
                fmt::format("a raw delta holds only new values; --base CHECKPOINT gives the old ones: {}",
                            describe_base(delta.header())),
                flags.delta);
  }
  if (context && flags.base.empty()) {
    throw Error(ErrorCode::kUsage,
                fmt::format("the places of a context delta are known only with its base: --base CHECKPOINT of {}",
                            describe_base(delta.header())),
                flags.delta);
  }
  ProgressBar bar(console);
  std::optional<CheckpointStore> store;
  std::optional<Checkpoint> base;
  if (raw) {
    store = open_store(console, flags, delta, bar.callback());
  } else if (!flags.base.empty()) {
    base = open_base(console.fs, flags.base, delta, flags.encode.threads);
  }
  DeltaOutput output(console.fs, flags.encode.output);
  CommitRecord commit;
  if (raw) {
    commit = raw_inverse(*store, delta, options, output.sink(), bar.callback());
  } else if (base) {
    commit = invert(delta, options, output.sink(), base->reader());
  } else {
    commit = invert(delta, options, output.sink());
  }
  output.commit();
  bar.wipe();
  Report report;
  report.add("delta", flags.encode.output, "delta");
  report.add("base_version", delta.header().version, "");
  report.add("version", delta.header().base_version, "version",
             fmt::format("{} -> {}", delta.header().version, delta.header().base_version));
  report.add("changed", commit.changed, "changed");
  report.add("delta_bytes", output.bytes(), "delta bytes");
  report.add("base_digest", delta.commit().result_digest.value, "base digest");
  report.add("result_digest", commit.result_digest.value, "result digest");
  report.print(console, flags.json);
  return kExitGood;
}

}  // namespace

AddedCommand add_invert(Parser& app, Console& console) {
  auto flags = std::make_shared<InvertFlags>();
  Parser* parser = app.add_subcommand("invert", "Write the delta that takes another one back");
  parser->add_option("delta", flags->delta, "The delta to invert")->required()->type_name("DELTA");
  flags->encode.add_to(*parser, false);
  parser->add_option("--base", flags->base, "The checkpoint that DELTA starts from; a raw or context delta needs it")
      ->type_name("CHECKPOINT");
  add_json(*parser, flags->json);
  parser->footer(
      "ulp and xor deltas invert by themselves. A raw delta holds only new values, and the places of a context delta\n"
      "are known only with its base, so these need it.\n\n"
      "Examples:\n"
      "  sparsecast invert 101.scd -o back_to_100.scd\n"
      "  sparsecast invert raw_101.scd -o back_to_100.scd --base step_100.safetensors");
  return {parser, [flags, &console] { return run_invert(console, *flags); }};
}

}  // namespace sparsecast::tools
