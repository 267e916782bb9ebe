// SPDX-License-Identifier: Apache-2.0

// sparsecast log pull, log follow: keep a local checkpoint at the newest version of a log.

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <csignal>

#include "tools/common/options.hpp"
#include "tools/common/progress.hpp"
#include "tools/common/report.hpp"
#include "tools/log/log_checkpoint.hpp"
#include "tools/log/log_commands.hpp"
#include "tools/log/log_open.hpp"

namespace sparsecast::tools {
namespace {

struct FollowFlags {
  LogFlags log;
  std::string checkpoint;
  std::optional<std::uint64_t> version;
  std::string lease;
  std::string lease_time = "1h";
  std::string max_age = "0";
  std::string interval = "2s";
  std::string notify_command;
  std::vector<std::string> notify_arguments;
  std::string notify_url;
  std::string notify_json = "{}";
  bool copy_on_write = false;
  bool replace = false;
  bool every_version = false;
  bool allow_rollback = false;
  bool once = false;
  bool json = false;
  int threads = 0;

  void add_to(Parser& parser);
};

std::atomic<LogFollower*> g_stopped_by_signal{nullptr};

extern "C" void stop_follower(int) {
  if (LogFollower* follower = g_stopped_by_signal.load()) follower->stop();
}

/// Makes SIGINT and SIGTERM stop the follower between two writes instead of ending the process.
class StopOnSignal {
 public:
  explicit StopOnSignal(LogFollower& follower) {
    g_stopped_by_signal = &follower;
    struct sigaction action {};
    action.sa_handler = stop_follower;
    sigemptyset(&action.sa_mask);
    for (std::size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &action, &before_[i]);
  }
  ~StopOnSignal() {
    for (std::size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &before_[i], nullptr);
    g_stopped_by_signal = nullptr;
  }
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM};
  struct sigaction before_[std::size(kSignals)] = {};
};

FollowerOptions follower_options(Console& console, const FollowFlags& flags, ProgressBar& bar) {
  FollowerOptions options;
  options.trust = flags.log.pinned(console.fs);
  options.trust.max_age = parse_duration(flags.max_age);
  options.lease = flags.lease;
  options.lease_time = parse_duration(flags.lease_time);
  options.every_version = flags.every_version;
  options.allow_rollback = flags.allow_rollback;
  if (!flags.notify_command.empty()) {
    options.notify.command = flags.notify_arguments;
    options.notify.command.insert(options.notify.command.begin(), flags.notify_command);
  }
  options.notify.url = flags.notify_url;
  options.notify.json = flags.notify_json;
  options.progress = bar.callback();
  options.note = [&bar](const std::string& sentence) { bar.say("sparsecast: " + sentence); };
  return options;
}

nlohmann::ordered_json as_json(const FollowReport& done) {
  return {{"version", done.version},
          {"head", done.head},
          {"applied", done.applied},
          {"reseeded", done.reseeded},
          {"objects_read", done.objects_read},
          {"bytes_read", done.bytes_read},
          {"fetch_seconds", done.fetch_seconds},
          {"apply_seconds", done.apply_seconds}};
}

CheckpointTargetOptions target_options(const FollowFlags& flags) {
  CheckpointTargetOptions options = in_place(flags.threads);
  options.copy_on_write = flags.copy_on_write;
  options.replace = flags.replace;
  return options;
}

int run_pull(Console& console, const FollowFlags& flags) {
  ProgressBar bar(console);
  const std::shared_ptr<ObjectStore> store = open_object_store(console.fs, flags.log.location);
  CheckpointFollower follower(console, store, flags.checkpoint, target_options(flags),
                              follower_options(console, flags, bar));
  const FollowReport done = follower.get().step(flags.version);
  bar.wipe();
  if (flags.json) {
    console.out << as_json(done).dump(2) << '\n';
    return kExitGood;
  }
  Report report;
  report.add("checkpoint", flags.checkpoint, "checkpoint");
  report.add("version", done.version, "version (verified)");
  report.add("head", done.head, "newest in the log");
  report.add("reseeded", done.reseeded, done.reseeded ? "anchor" : "", "started from one");
  report.add("applied", done.applied, "deltas applied");
  report.add("objects_read", done.objects_read, "objects read");
  report.add("bytes_read", done.bytes_read, "bytes read",
             fmt::format("{} ({})", human_count(done.bytes_read), human_bytes(done.bytes_read)));
  report.add("fetch_seconds", done.fetch_seconds, "fetching", human_seconds(done.fetch_seconds));
  report.add("apply_seconds", done.apply_seconds, "applying", human_seconds(done.apply_seconds));
  report.print(console, false);
  return kExitGood;
}

/// Prints a line for each version that was applied.
void print_applied(Console& console, ProgressBar& bar, bool json, const FollowReport& done) {
  bar.wipe();
  if (json) {
    console.out << as_json(done).dump() << std::endl;
    return;
  }
  console.out << fmt::format("version {} of {}: {}{}, {} read, fetched in {}, applied in {}", done.version, done.head,
                             done.reseeded ? "an anchor, " : "",
                             done.applied == 1 ? "1 delta" : fmt::format("{} deltas", done.applied),
                             human_bytes(done.bytes_read), human_seconds(done.fetch_seconds),
                             human_seconds(done.apply_seconds))
              << std::endl;
}

int run_follow(Console& console, const FollowFlags& flags) {
  ProgressBar bar(console);
  const std::shared_ptr<ObjectStore> store = open_object_store(console.fs, flags.log.location);
  CheckpointFollower follower(console, store, flags.checkpoint, target_options(flags),
                              follower_options(console, flags, bar));
  const auto report = [&](const FollowReport& done) { print_applied(console, bar, flags.json, done); };
  if (flags.once) {
    const FollowReport done = follower.get().step();
    if (done.applied > 0 || done.reseeded) report(done);
  } else {
    const StopOnSignal signals(follower.get());
    follower.get().follow(parse_duration(flags.interval), report);
  }
  return kExitGood;
}

void FollowFlags::add_to(Parser& parser) {
  log.add_to(parser);
  parser.add_option("checkpoint", checkpoint, "The local checkpoint; made from an anchor where there is none yet")
      ->required()
      ->type_name("CHECKPOINT");
  parser
      .add_option(
          "--lease", lease,
          "Keep what this reader needs from gc, under this name, one a reader; default: none, gc may overtake it")
      ->type_name("NAME");
  add_duration(parser, "--lease-time", lease_time, "How long the lease holds when this reader falls silent (1h)");
  add_duration(parser, "--max-age", max_age,
               "Fail when the newest version is older: the log is frozen or its publisher dead. 0: any age");
  parser.add_flag("--copy-on-write", copy_on_write,
                  "Make each version in a copy that takes the old one's place, so that who has its files open is not "
                  "disturbed; default: only the pages that change are written, in place");
  add_replace(parser, replace);
  parser.add_flag("--every-version", every_version, "Through every single version, never a merged delta");
  parser.add_flag("--allow-rollback", allow_rollback,
                  "Follow a log that shows an older head, or another history, than was seen before");
  parser
      .add_option("--notify-command", notify_command,
                  "Run this program (no shell) after each version; its environment says which (SPARSECAST_VERSION, "
                  "SPARSECAST_DIGEST, SPARSECAST_STREAM)")
      ->type_name("PROGRAM");
  parser.add_option("--notify-argument", notify_arguments, "An argument for it; may be repeated")
      ->allow_extra_args(false)
      ->type_name("TEXT");
  parser.add_option("--notify-url", notify_url, "POST to this URL after each version")->type_name("URL");
  parser.add_option("--notify-json", notify_json, "What is posted; version, digest and stream are added")
      ->capture_default_str()
      ->type_name("JSON");
  add_threads(parser, threads);
  add_json(parser, json);
}

}  // namespace

AddedCommand add_log_pull(Parser& log, Console& console) {
  auto flags = std::make_shared<FollowFlags>();
  Parser* parser = log.add_subcommand("pull", "Bring a local checkpoint to the log's newest version, once");
  flags->add_to(*parser);
  parser->add_option("--version", flags->version, "To this version instead")->type_name("N");
  parser->footer(
      "Every delta is verified before the first byte is written, and every version by its digest after the last. After "
      "an\n"
      "interruption or an error, the same command goes on. What belongs to the follower lies in CHECKPOINT.follow.\n\n"
      "Examples:\n"
      "  sparsecast log pull /shared/log /local/model\n"
      "  sparsecast log pull s3://bucket/run-7 /local/model.safetensors --trust publisher.pub");
  return {parser, [flags, &console] { return run_pull(console, *flags); }};
}

AddedCommand add_log_follow(Parser& log, Console& console) {
  auto flags = std::make_shared<FollowFlags>();
  Parser* parser = log.add_subcommand("follow", "Keep a local checkpoint at the log's newest version");
  flags->add_to(*parser);
  add_duration(*parser, "--interval", flags->interval, "How often to look for a new version (2s)");
  parser->add_flag("--once", flags->once, "Stop at what is the newest version now");
  parser->footer(
      "As `log pull`, for ever: until SIGINT or SIGTERM, which end it between two versions with exit code 0, or an\n"
      "error that needs a person. An outage of the store is waited out, and told on stderr.\n\n"
      "Examples:\n"
      "  sparsecast log follow /shared/log /local/model --lease engine-3\n"
      "  sparsecast log follow s3://bucket/run-7 /local/model --notify-url "
      "http://localhost:30000/update_weights_from_disk \\\n"
      "      --notify-json '{\"model_path\": \"/local/model\"}'");
  return {parser, [flags, &console] { return run_follow(console, *flags); }};
}

}  // namespace sparsecast::tools
