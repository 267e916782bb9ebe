// SPDX-License-Identifier: Apache-2.0

// sparsecast log publish: publishes the next version.

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstring>

#include "checkpoint/checkpoint_apply.hpp"
#include "core/file_tree.hpp"
#include "sparsecast/publisher.hpp"
#include "tools/common/options.hpp"
#include "tools/common/progress.hpp"
#include "tools/common/report.hpp"
#include "tools/delta/diff_target.hpp"
#include "tools/log/log_commands.hpp"
#include "tools/log/log_lead.hpp"
#include "tools/log/log_mirror.hpp"

namespace sparsecast::tools {
namespace {

struct PublishFlags {
  LogFlags log;
  LeadFlags lead;
  EncodeFlags encode;
  DTypeFlags dtypes;
  std::string target;
  std::string base;
  MirrorFlags mirror;
  std::string label;
  bool allow_empty = false;
  bool json = false;
};

bool is_delta(FileSystem& fs, const std::string& path) {
  if (path.empty() || fs.is_directory(path)) return false;
  const std::unique_ptr<File> file = fs.open(path, OpenMode::kRead);
  std::array<std::byte, 4> magic{};
  if (file->size() < magic.size()) return false;
  file->read_at(0, magic);
  return std::memcmp(magic.data(), "SCH1", magic.size()) == 0;
}

void check(const PublishFlags& flags, bool delta) {
  if (!flags.base.empty() && !flags.mirror.path.empty()) {
    throw Error(ErrorCode::kUsage, "--base and --mirror exclude each other");
  }
  const bool weights = !flags.base.empty() || !flags.mirror.path.empty();
  if (delta && !flags.base.empty()) throw Error(ErrorCode::kUsage, "a delta needs no --base");
  if (!delta && !weights) throw Error(ErrorCode::kUsage, "publish needs --base CHECKPOINT or --mirror DIR");
  if (flags.target.empty() && !flags.lead.take_over) {
    throw Error(ErrorCode::kUsage, "publish needs NEW, unless it is only to --take-over");
  }
  if (delta && flags.lead.take_over) {
    throw Error(ErrorCode::kUsage,
                "a takeover is a version of its own, so a delta made before cannot be the next one: take over first "
                "(without NEW), then make the delta from the version that this gives");
  }
}

/// A temporary delta file, removed on destruction.
struct ScratchDelta {
  FileSystem& fs;
  std::string path;

  ~ScratchDelta() {
    try {
      if (fs.exists(path)) fs.remove(path);
    } catch (const Error&) {
      // It stays; its name says that it is temporary.
    }
  }
};

class PublishRun {
 public:
  PublishRun(Console& console, const PublishFlags& flags)
      : console_(console),
        flags_(flags),
        bar_(console),
        log_(console.fs, flags.log),
        head_(log_.head()),
        weights_(!flags.mirror.path.empty() ? flags.mirror.path
                 : !flags.base.empty()      ? flags.base
                                            : flags.target) {}

  int run();

 private:
  void publish_delta(const std::string& path);
  void publish_difference();
  void lead(const std::shared_ptr<const TensorTable>& table, const StateDigest& digest);
  StateDigest digest_of(const Checkpoint& checkpoint);
  DeltaFile encode(const Checkpoint& base, const StateDigest& base_digest, const LogCommit& from,
                   const std::string& path);
  bool is_published(const DeltaFile& delta) const;
  void print(double seconds);

  Console& console_;
  const PublishFlags& flags_;
  ProgressBar bar_;
  OpenLog log_;
  LogCommit head_;
  std::string weights_;
  std::optional<Mirror> mirror_;
  std::optional<Leader> leader_;
  bool already_ = false;
  bool took_over_ = false;
};

StateDigest PublishRun::digest_of(const Checkpoint& checkpoint) {
  const CheckpointStore store(checkpoint);
  return sum(digest_store(store, flags_.encode.threads, bar_.callback()));
}

/// Encodes the delta from the base to the new state, as the version after `from`.
DeltaFile PublishRun::encode(const Checkpoint& base, const StateDigest& base_digest, const LogCommit& from,
                             const std::string& path) {
  const std::unique_ptr<DiffTarget> target = open_diff_target(console_.fs, flags_.target, base, weights_);
  DeltaHeader header;
  header.stream = from.stream;
  header.base_version = from.version;
  header.version = from.version + 1;
  header.base_digest = base_digest;
  const Progress progress = bar_.callback();
  const std::uint64_t elements = base.table().elements();
  DeltaOutput output(console_.fs, path);
  encode_delta(base.table(), *target->detector, header, flags_.encode.options(), true, output.sink(),
               [&](std::uint64_t done) {
                 if (progress) progress("comparing", done, elements);
               });
  output.commit();
  return DeltaFile::open(console_.fs, path);
}

/// Returns whether the head is the result of this delta: an earlier run of the same command was interrupted after its
/// commit.
bool PublishRun::is_published(const DeltaFile& delta) const {
  return head_.kind == CommitKind::kDelta && head_.version == delta.header().version &&
         head_.base_digest == delta.header().base_digest && head_.digest == delta.commit().result_digest;
}

void PublishRun::publish_delta(const std::string& path) {
  const DeltaFile delta = DeltaFile::open(console_.fs, path);
  if (is_published(delta)) {
    already_ = true;
    return;
  }
  lead(std::make_shared<TensorTable>(delta.table()), delta.header().base_digest);
  head_ = leader_->writer().publish(delta, flags_.label);
}

void PublishRun::publish_difference() {
  require_not_interrupted(console_.fs, weights_);
  Checkpoint base = Checkpoint::open(console_.fs, weights_);
  flags_.dtypes.declare(base);
  const StateDigest digest = digest_of(base);
  const ScratchDelta scratch{console_.fs, temporary_name(console_.fs, leader_->state_path())};
  if (!(digest == head_.digest)) {
    if (head_.kind == CommitKind::kDelta && digest == head_.base_digest && !flags_.target.empty()) {
      LogCommit before = head_;
      before.version -= 1;
      already_ = is_published(encode(base, digest, before, scratch.path));
    }
    if (already_) return;
    throw Error(ErrorCode::kWrongBase,
                fmt::format("its digest is {}, that of the log's newest version, {}, is {}", to_hex(digest.value),
                            head_.version, to_hex(head_.digest.value)),
                weights_);
  }
  const auto table = std::make_shared<TensorTable>(base.table());
  if (flags_.target.empty() || (!leader_->leads() && !flags_.lead.take_over)) {
    already_ = leader_->leads();
    lead(table, digest);
    return;
  }
  std::optional<DeltaFile> delta = encode(base, digest, head_, scratch.path);
  already_ = delta->commit().changed == 0 && !flags_.allow_empty;
  if (already_) return;
  lead(table, digest);
  // A takeover is a version of its own, from which the delta must start.
  if (took_over_) delta = encode(base, digest, head_, scratch.path);
  head_ = leader_->writer().publish(*delta, flags_.label);
}

void PublishRun::lead(const std::shared_ptr<const TensorTable>& table, const StateDigest& digest) {
  const std::uint64_t before = head_.epoch;
  head_ = leader_->lead(table, digest);
  took_over_ = head_.epoch != before;
}

void PublishRun::print(double seconds) {
  const auto changed = static_cast<double>(head_.changed);
  const double density = ratio(changed, static_cast<double>(head_.elements));
  Report report;
  report.add("log", log_.store->location(), "log");
  report.add("version", head_.version, "version");
  report.add("epoch", head_.epoch, "epoch");
  report.add("already", already_, already_ ? "already" : "",
             flags_.target.empty() ? "this publisher leads" : "the log's newest version has these very weights");
  report.add("took_over", took_over_, "", "");
  report.add("elements", head_.elements, "elements");
  report.add("changed", head_.changed, "changed");
  report.add("density", density, "density", human_percent(density));
  report.add("delta_bytes", head_.delta_bytes, "delta bytes",
             fmt::format("{} ({})", human_count(head_.delta_bytes), human_bytes(head_.delta_bytes)));
  report.add("bytes_per_change", ratio(static_cast<double>(head_.delta_bytes), changed), "bytes per change",
             fmt::format("{:.4f}", ratio(static_cast<double>(head_.delta_bytes), changed)));
  report.add("delta", to_hex(head_.delta), "");
  report.add("digest", head_.digest.value, "digest");
  report.add("publisher_state", leader_->state_path(), "");
  if (mirror_) {
    report.add("anchor_bytes", mirror_->anchor_bytes(), mirror_->anchor_bytes() > 0 ? "anchor" : "",
               human_bytes(mirror_->anchor_bytes()));
    report.add("merged", mirror_->merged(), mirror_->merged() > 0 ? "merged deltas" : "");
    report.add("maintenance_error", mirror_->maintenance_error(), "", "");
  }
  report.add("seconds", seconds, "time", human_seconds(seconds));
  report.print(console_, flags_.json);
}

int PublishRun::run() {
  const auto began = std::chrono::steady_clock::now();
  const bool delta = is_delta(console_.fs, flags_.target);
  check(flags_, delta);
  const std::string state = publisher_state_path(console_.fs, flags_.log.location, weights_);
  if (!flags_.mirror.path.empty()) {
    mirror_.emplace(console_, bar_, log_, flags_.log, flags_.mirror, flags_.encode.threads);
    mirror_->bring_along();
    head_ = log_.head();
  }
  leader_.emplace(console_, log_, flags_.lead, state, flags_.mirror.writer_options(flags_.encode.threads), head_);
  if (delta) {
    publish_delta(flags_.target);
  } else {
    publish_difference();
  }
  if (mirror_) {
    mirror_->bring_along();
    mirror_->maintain(leader_->writer());
  }
  bar_.wipe();
  print(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  return kExitGood;
}

}  // namespace

AddedCommand add_log_publish(Parser& log, Console& console) {
  auto flags = std::make_shared<PublishFlags>();
  Parser* parser = log.add_subcommand("publish", "Publish the next version");
  flags->log.add_to(*parser);
  parser
      ->add_option("new", flags->target,
                   "The new weights: a checkpoint, a sparse step, or a delta from the newest version. Without it, "
                   "--take-over is all that is done")
      ->type_name("NEW");
  parser->add_option("--base", flags->base, "A checkpoint that holds the log's newest version")
      ->type_name("CHECKPOINT");
  flags->mirror.add_to(*parser);
  flags->lead.add_to(*parser);
  flags->encode.add_codec_to(*parser, true);
  flags->dtypes.add_to(*parser);
  add_label(*parser, flags->label);
  parser->add_flag("--allow-empty", flags->allow_empty, "Publish a version even where nothing changed");
  add_json(*parser, flags->json);
  parser->footer(
      "Returns when the version is durable, and says so. The same command again, after an interruption or an error, "
      "is\n"
      "always safe: what is published already is found out and not published twice.\n\n"
      "Examples:\n"
      "  sparsecast log publish /shared/log step_101.safetensors --base step_100.safetensors\n"
      "  sparsecast log publish s3://bucket/run-7 sparse_step_13.safetensors --mirror /local/mirror --label 'step 13'\n"
      "  sparsecast log publish /shared/log 101.scd");
  return {parser, [flags, &console] { return PublishRun(console, *flags).run(); }};
}

}  // namespace sparsecast::tools
