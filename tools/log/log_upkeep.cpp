// SPDX-License-Identifier: Apache-2.0

// sparsecast log anchor, log compact, log gc: maintain a log, by any process that may write to it.

#include <fmt/format.h>

#include <chrono>

#include "checkpoint/checkpoint_apply.hpp"
#include "sparsecast/error.hpp"
#include "tools/common/options.hpp"
#include "tools/common/progress.hpp"
#include "tools/common/report.hpp"
#include "tools/log/log_checkpoint.hpp"
#include "tools/log/log_commands.hpp"
#include "tools/log/log_open.hpp"

namespace sparsecast::tools {
namespace {

struct AnchorFlags {
  LogFlags log;
  std::string key;
  std::string checkpoint;
  std::string mirror;
  std::optional<std::uint64_t> version;
  bool json = false;
  int threads = 0;
};

/// Returns the version that has these weights: the requested one, or the newest.
std::uint64_t version_of(OpenLog& log, const StateDigest& digest, const AnchorFlags& flags) {
  if (flags.version) return *flags.version;
  const LogCommit head = log.head();
  const std::uint64_t floor = log.reader->floor();
  for (std::uint64_t version = head.version + 1; version-- > floor;) {
    const std::optional<LogCommit> commit = version == head.version ? head : log.reader->commit(version);
    if (commit && commit->digest == digest) return version;
  }
  throw Error(
      ErrorCode::kWrongBase,
      fmt::format("its digest, {}, is that of no version from {} to {}", to_hex(digest.value), floor, head.version),
      flags.checkpoint);
}

int run_anchor(Console& console, const AnchorFlags& flags) {
  if (flags.checkpoint.empty() == flags.mirror.empty()) {
    throw Error(ErrorCode::kUsage, "anchor needs one of --checkpoint and --mirror");
  }
  const auto began = std::chrono::steady_clock::now();
  ProgressBar bar(console);
  OpenLog log(console.fs, flags.log);
  log.head();
  LogWriterOptions options;
  options.key = load_key(console.fs, flags.key);
  options.threads = flags.threads;
  std::optional<CheckpointFollower> mirror;
  std::uint64_t version = 0;
  if (!flags.mirror.empty()) {
    FollowerOptions follow;
    follow.trust = flags.log.pinned(console.fs);
    follow.progress = bar.callback();
    mirror.emplace(console, log.store, flags.mirror, in_place(flags.threads), std::move(follow));
    version = mirror->get().step(flags.version).version;
  } else {
    require_not_interrupted(console.fs, flags.checkpoint);
    const CheckpointStore store(Checkpoint::open(console.fs, flags.checkpoint));
    version = version_of(log, sum(digest_store(store, flags.threads, bar.callback())), flags);
  }
  const AnchorRef anchor =
      LogWriter(*log.reader, options).write_anchor(console.fs, mirror ? flags.mirror : flags.checkpoint, version);
  bar.wipe();
  Report report;
  report.add("log", log.store->location(), "log");
  report.add("version", anchor.version, "version");
  report.add("anchor", anchor_directory(anchor), "anchor");
  report.add("bytes", anchor.bytes, "bytes",
             fmt::format("{} ({})", human_count(anchor.bytes), human_bytes(anchor.bytes)));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  report.add("seconds", seconds, "time", human_seconds(seconds));
  report.print(console, flags.json);
  return kExitGood;
}

struct CompactFlags {
  LogFlags log;
  std::string key;
  std::string scratch = "/tmp";
  std::string mirror;
  std::uint64_t limit = 0;
  bool json = false;
  int threads = 0;
};

int run_compact(Console& console, const CompactFlags& flags) {
  OpenLog log(console.fs, flags.log);
  log.head();
  LogWriterOptions options;
  options.key = load_key(console.fs, flags.key);
  options.threads = flags.threads;
  std::optional<CheckpointFollower> follower;
  std::optional<MergeMirror> mirror;
  if (!flags.mirror.empty()) {
    FollowerOptions follow;
    follow.trust = flags.log.pinned(console.fs);
    follow.merged = false;  // Spans that lack a merged delta are made of what it goes through.
    follower.emplace(console, log.store, flags.mirror, in_place(flags.threads, true), std::move(follow));
    mirror = MergeMirror{flags.mirror, follower->get().step().version};
  }
  const CompactReport done = LogWriter(*log.reader, options).compact(console.fs, flags.scratch, flags.limit, mirror);
  Report report;
  report.add("log", log.store->location(), "log");
  report.add("merged", done.merged, "merged deltas");
  report.add("bytes", done.bytes, "bytes", human_bytes(done.bytes));
  report.add("without_base", done.without_base, done.without_base > 0 ? "left out" : "",
             fmt::format("{} spans with context deltas that no --mirror has gone through", done.without_base));
  report.print(console, flags.json);
  return kExitGood;
}

struct GcFlags {
  LogFlags log;
  std::string key;
  std::uint64_t keep = 256;
  std::string keep_time = "0";
  std::string grace = "1h";
  std::string max_lease = "1d";
  bool dry_run = false;
  bool json = false;
};

int run_gc(Console& console, const GcFlags& flags) {
  OpenLog log(console.fs, flags.log);
  log.head();
  LogWriterOptions options;
  options.key = load_key(console.fs, flags.key);
  RetentionPolicy policy;
  policy.keep_versions = flags.keep;
  policy.keep_time = parse_duration(flags.keep_time);
  policy.grace = parse_duration(flags.grace);
  policy.max_lease = parse_duration(flags.max_lease);
  policy.dry_run = flags.dry_run;
  const GcReport done = LogWriter(*log.reader, options).gc(policy);
  Report report;
  report.add("log", log.store->location(), "log");
  report.add("dry_run", flags.dry_run, flags.dry_run ? "dry run" : "", "nothing was removed");
  report.add("floor", done.floor, "kept from version");
  report.add("removed_objects", done.removed_objects, flags.dry_run ? "would remove" : "removed",
             fmt::format("{} objects, {}", human_count(done.removed_objects), human_bytes(done.removed_bytes)));
  report.add("removed_bytes", done.removed_bytes, "");
  report.add("kept_bytes", done.kept_bytes, "kept", human_bytes(done.kept_bytes));
  report.add("held_by", done.held_by, done.held_by.empty() ? "" : "held by lease");
  report.print(console, flags.json);
  return kExitGood;
}

}  // namespace

AddedCommand add_log_anchor(Parser& log, Console& console) {
  auto flags = std::make_shared<AnchorFlags>();
  Parser* parser = log.add_subcommand("anchor", "Store a whole checkpoint, from which followers can start");
  flags->log.add_to(*parser);
  parser->add_option("--checkpoint", flags->checkpoint, "A checkpoint that holds a version of the log")
      ->type_name("CHECKPOINT");
  parser
      ->add_option("--mirror", flags->mirror,
                   "A checkpoint that follows the log: brought to the version first, made where there is none")
      ->type_name("CHECKPOINT");
  parser->add_option("--version", flags->version, "Of which version; default: the newest with its digest")
      ->type_name("N");
  add_key(*parser, flags->key);
  add_threads(*parser, flags->threads);
  add_json(*parser, flags->json);
  parser->footer(
      "The files are ordinary safetensors: any tool reads them. The digest is verified before anything is uploaded, "
      "and "
      "an\n"
      "anchor that is there already is no error.\n\n"
      "Example:\n"
      "  sparsecast log anchor /shared/log --mirror /local/mirror");
  return {parser, [flags, &console] { return run_anchor(console, *flags); }};
}

AddedCommand add_log_compact(Parser& log, Console& console) {
  auto flags = std::make_shared<CompactFlags>();
  Parser* parser = log.add_subcommand("compact", "Merge deltas for those who are far behind");
  flags->log.add_to(*parser);
  add_key(*parser, flags->key);
  parser->add_option("--limit", flags->limit, "At most so many merged deltas; 0: all that are missing")
      ->capture_default_str()
      ->type_name("N");
  parser->add_option("--scratch", flags->scratch, "Where temporary files may lie")
      ->capture_default_str()
      ->type_name("DIR");
  parser
      ->add_option(
          "--mirror", flags->mirror,
          "A checkpoint that follows the log, brought along first: merges what has context positions on its way")
      ->type_name("CHECKPOINT");
  add_threads(*parser, flags->threads);
  add_json(*parser, flags->json);
  parser->footer(
      "Spans of 4, 16 and 64 versions. Deltas with context positions are joined by the weights before them, so only\n"
      "those that the mirror goes through, or the publisher's did.\n\n"
      "Example:\n"
      "  sparsecast log compact /shared/log --mirror /local/mirror");
  return {parser, [flags, &console] { return run_compact(console, *flags); }};
}

AddedCommand add_log_gc(Parser& log, Console& console) {
  auto flags = std::make_shared<GcFlags>();
  Parser* parser = log.add_subcommand("gc", "Remove what no reader needs any more");
  flags->log.add_to(*parser);
  add_key(*parser, flags->key);
  parser->add_option("--keep", flags->keep, "The newest versions that stay, at least")
      ->capture_default_str()
      ->type_name("N");
  add_duration(*parser, "--keep-time", flags->keep_time, "And all that are younger than this (0)");
  add_duration(*parser, "--grace", flags->grace, "Unfinished uploads are let be for so long (1h)");
  add_duration(*parser, "--max-lease", flags->max_lease,
               "A lease counts at most so long after its reader renewed it (1d)");
  parser->add_flag("--dry-run", flags->dry_run, "Only say what would be removed");
  add_json(*parser, flags->json);
  parser->footer(
      "The floor rises to the newest anchor at or below what policy and leases allow; without a newer anchor nothing\n"
      "goes. A reader that is overtaken all the same starts again from an anchor.\n\n"
      "Example:\n"
      "  sparsecast log gc /shared/log --keep 64 --keep-time 1d --dry-run");
  return {parser, [flags, &console] { return run_gc(console, *flags); }};
}

}  // namespace sparsecast::tools
