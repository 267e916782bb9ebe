// SPDX-License-Identifier: Apache-2.0

// sparsecast digest: prints the state digest of a checkpoint.

#include <fmt/format.h>

#include "checkpoint/checkpoint_apply.hpp"
#include "tools/common/commands.hpp"
#include "tools/common/options.hpp"
#include "tools/common/progress.hpp"
#include "tools/common/report.hpp"

namespace sparsecast::tools {
namespace {

struct DigestFlags {
  std::string checkpoint;
  DTypeFlags dtypes;
  bool tensors = false;
  bool json = false;
  int threads = 0;
};

int run_digest(Console& console, const DigestFlags& flags) {
  require_not_interrupted(console.fs, flags.checkpoint);
  Checkpoint checkpoint = Checkpoint::open(console.fs, flags.checkpoint);
  flags.dtypes.declare(checkpoint);
  const CheckpointStore store(checkpoint);
  std::vector<StateDigest> digests;
  {
    ProgressBar bar(console);
    digests = digest_store(store, flags.threads, bar.callback());
  }
  const TensorTable& table = store.table();
  if (!flags.json) {
    if (flags.tensors) {
      for (std::size_t t = 0; t < table.size(); ++t) {
        console.out << fmt::format("{}  {}\n", to_hex(digests[t].value), table[t].name);
      }
    }
    console.out << fmt::format("{}  {}\n", to_hex(sum(digests).value), flags.checkpoint);
    return kExitGood;
  }
  Report report;
  report.add("checkpoint", flags.checkpoint, "checkpoint");
  report.add("digest", sum(digests).value, "digest");
  report.add("table_hash", table.hash(), "table hash");
  report.add("tensors", std::uint64_t{table.size()}, "tensors");
  report.add("elements", table.elements(), "elements");
  report.add("bytes", table.bytes(), "bytes");
  if (flags.tensors) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (std::size_t t = 0; t < table.size(); ++t) {
      rows.push_back({{"name", table[t].name},
                      {"dtype", to_string(table[t].dtype)},
                      {"shape", table[t].shape},
                      {"digest", to_hex(digests[t].value)}});
    }
    report.add("tensor_rows", std::move(rows), "", "");
  }
  report.print(console, true);
  return kExitGood;
}

}  // namespace

AddedCommand add_digest(Parser& app, Console& console) {
  auto flags = std::make_shared<DigestFlags>();
  Parser* parser = app.add_subcommand("digest", "Print the state digest of a checkpoint");
  parser->add_option("checkpoint", flags->checkpoint, "The checkpoint")->required()->type_name("CHECKPOINT");
  parser->add_flag("--tensors", flags->tensors, "Also a line for each tensor; they add up to the whole");
  flags->dtypes.add_to(*parser);
  add_threads(*parser, flags->threads);
  add_json(*parser, flags->json);
  parser->footer(
      "The digest names the whole content (names, dtypes, shapes, bits), however it is cut into files. A delta carries "
      "the\n"
      "digests of its base and of its result.\n\n"
      "Example:\n"
      "  sparsecast digest step_101.safetensors");
  return {parser, [flags, &console] { return run_digest(console, *flags); }};
}

}  // namespace sparsecast::tools
