// SPDX-License-Identifier: Apache-2.0

// sparsecast log init: creates a log whose first version is a checkpoint.

#include <fmt/format.h>

#include <chrono>

#include "checkpoint/checkpoint_apply.hpp"
#include "tools/common/options.hpp"
#include "tools/common/progress.hpp"
#include "tools/common/report.hpp"
#include "tools/log/log_commands.hpp"
#include "tools/log/log_open.hpp"
#include "tools/log/log_publisher_state.hpp"

namespace sparsecast::tools {
namespace {

struct InitFlags {
  LogFlags log;
  std::string checkpoint;
  DTypeFlags dtypes;
  std::uint64_t version = 0;
  std::string stream;
  std::string key;
  std::string label;
  std::string state;
  std::string mirror;
  bool anchor = true;
  bool json = false;
  int threads = 0;
};

/// Tensors and digest of the checkpoint.
struct FirstVersion {
  std::shared_ptr<const TensorTable> table;
  StateDigest digest;
};

FirstVersion read_first(const Checkpoint& checkpoint, const InitFlags& flags, const Progress& progress) {
  const CheckpointStore store(checkpoint);
  return {std::make_shared<TensorTable>(store.table()), sum(digest_store(store, flags.threads, progress))};
}

/// Returns the head of a log that an interrupted run of this command began; throws for any other log.
LogCommit require_own(const LogCommit& head, const std::optional<PublisherState>& state, const InitFlags& flags,
                      const FirstVersion& first, const std::string& location) {
  if (head.kind == CommitKind::kGenesis && head.version == flags.version && head.digest == first.digest && state &&
      state->leads(head)) {
    return head;
  }
  throw Error(ErrorCode::kUsage,
              fmt::format("there is a log here already: stream {}, version {}", to_hex(head.stream), head.version),
              location);
}

int run_init(Console& console, const InitFlags& flags) {
  const auto began = std::chrono::steady_clock::now();
  ProgressBar bar(console);
  const std::string& weights = flags.mirror.empty() ? flags.checkpoint : flags.mirror;
  const std::string state_path =
      flags.state.empty() ? publisher_state_path(console.fs, flags.log.location, weights) : flags.state;
  const StreamId stream = flags.stream.empty() ? random_stream() : hash_from_hex(flags.stream);
  PublisherState state = PublisherState::random(stream);
  LogWriterOptions options;
  options.key = load_key(console.fs, flags.key);
  options.publisher = state.publisher;
  options.threads = flags.threads;
  OpenLog log(console.fs, flags.log);
  require_not_interrupted(console.fs, flags.checkpoint);
  Checkpoint checkpoint = Checkpoint::open(console.fs, flags.checkpoint);
  flags.dtypes.declare(checkpoint);
  const FirstVersion first = read_first(checkpoint, flags, bar.callback());

  LogWriter writer(*log.reader, options);
  std::optional<LogCommit> commit = log.find_head();
  if (commit) {
    commit = require_own(*commit, PublisherState::load(console.fs, state_path), flags, first, log.store->location());
  } else {
    PublisherState::load(console.fs, state_path);  // Refuses a file that is something else.
    state.save(console.fs, state_path);
    commit = writer.create({stream, flags.version, first.table, first.digest, {}, flags.label});
  }
  AnchorRef anchor;
  if (flags.anchor) anchor = writer.write_anchor(checkpoint, flags.checkpoint, commit->version);
  bar.wipe();

  Report report;
  report.add("log", log.store->location(), "log");
  report.add("stream", commit->stream, "stream");
  report.add("version", commit->version, "version");
  report.add("tensors", std::uint64_t{first.table->size()}, "tensors");
  report.add("elements", first.table->elements(), "elements");
  report.add("dense_bytes", first.table->bytes(), "dense bytes",
             fmt::format("{} ({})", human_count(first.table->bytes()), human_bytes(first.table->bytes())));
  report.add("digest", commit->digest.value, "digest");
  report.add("anchor_bytes", anchor.bytes, "anchor",
             flags.anchor ? human_bytes(anchor.bytes) : std::string("none: nobody can join until there is one"));
  report.add(
      "signed", !commit->keys.empty(), "signed by",
      commit->signer ? to_string(*commit->signer) : std::string("nobody: anyone who can write here is believed"));
  report.add("publisher_state", state_path, "publisher state");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  report.add("seconds", seconds, "time", human_seconds(seconds));
  report.print(console, flags.json);
  return kExitGood;
}

}  // namespace

AddedCommand add_log_init(Parser& log, Console& console) {
  auto flags = std::make_shared<InitFlags>();
  Parser* parser = log.add_subcommand("init", "Begin a log with a checkpoint as its first version");
  flags->log.add_to(*parser);
  parser->add_option("checkpoint", flags->checkpoint, "The checkpoint that the first delta will start from")
      ->required()
      ->type_name("CHECKPOINT");
  parser->add_option("--version", flags->version, "Its version number")->capture_default_str()->type_name("N");
  parser->add_option("--stream", flags->stream, "Stream id, 32 hexadecimal digits; default: random");
  flags->dtypes.add_to(*parser);
  add_key(*parser, flags->key);
  add_label(*parser, flags->label);
  parser->add_flag("--anchor,!--no-anchor", flags->anchor,
                   "Store the checkpoint as the first anchor, from which followers start (default)");
  parser
      ->add_option("--state", flags->state, "The publisher's state file; default: beside the mirror or the checkpoint")
      ->type_name("FILE");
  parser
      ->add_option(
          "--mirror", flags->mirror,
          "The mirror that `log publish` is going to have, so that it finds the state beside it; not made here")
      ->type_name("DIR");
  add_threads(*parser, flags->threads);
  add_json(*parser, flags->json);
  parser->footer(
      "The state file says that whoever has it is the publisher of this log: `log publish` on this machine goes on\n"
      "without a takeover. The same command again, after an interruption, finishes what was begun.\n\n"
      "Examples:\n"
      "  sparsecast log init /shared/log step_100.safetensors --version 100 --mirror mirror\n"
      "  sparsecast log init s3://bucket/run-7 model_dir/ --key publisher.key");
  return {parser, [flags, &console] { return run_init(console, *flags); }};
}

}  // namespace sparsecast::tools
