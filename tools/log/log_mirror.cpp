// SPDX-License-Identifier: Apache-2.0
#include "tools/log/log_mirror.hpp"

#include <fmt/format.h>
#include "tools/common/parser.hpp"

#include "sparsecast/error.hpp"

namespace sparsecast::tools {

void MirrorFlags::add_to(Parser& parser) {
  parser
      .add_option("--mirror", path,
                  "A checkpoint that follows the log, as the base; brought along afterwards, and made from an anchor "
                  "where there is none. Merged deltas and anchors are made from it")
      ->type_name("CHECKPOINT");
  add_replace(parser, replace);
  parser.add_flag("!--no-anchors", anchors, "With --mirror: write no anchors");
  parser.add_flag("!--no-merge", merge, "With --mirror: write no merged deltas");
  parser
      .add_option("--bandwidth", gigabytes_per_second,
                  "How fast a joiner reads: an anchor is due when replaying would take longer than reading one")
      ->check(Condition::positive())
      ->capture_default_str()
      ->type_name("GB/S");
}

LogWriterOptions MirrorFlags::writer_options(int threads) const {
  LogWriterOptions options;
  options.threads = threads;
  options.anchor_rule.bytes_per_second = gigabytes_per_second * 1e9;
  return options;
}

namespace {

CheckpointTargetOptions target_options(int threads, const MirrorFlags& flags) {
  CheckpointTargetOptions options = in_place(threads, flags.merge);
  options.replace = flags.replace;
  return options;
}

}  // namespace

Mirror::Mirror(Console& console, ProgressBar& bar, OpenLog& log, const LogFlags& log_flags, const MirrorFlags& flags,
               int threads)
    : console_(console),
      bar_(bar),
      flags_(flags),
      follower_(console, log.store, flags.path, target_options(threads, flags), [&] {
        FollowerOptions options;
        options.trust = log_flags.pinned(console.fs);
        options.progress = bar.callback();
        return options;
      }()) {}

void Mirror::bring_along() { follower_.get().step(); }

void Mirror::maintain(LogWriter& writer) {
  try {
    if (flags_.merge) {
      const TemporaryDirectory scratch(console_.fs, follower_.directory() + "/merge");
      const MergeMirror mirror{flags_.path, follower_.get().version().value()};
      merged_ = writer.compact(console_.fs, scratch.path(), 0, mirror).merged;
    }
    if (flags_.anchors && writer.anchor_due()) {
      anchor_bytes_ = writer.write_anchor(console_.fs, flags_.path, writer.head().version).bytes;
    }
  } catch (const Error& error) {
    maintenance_error_ = error.what();
    bar_.say(fmt::format("sparsecast: the version is published; upkeep failed: {}", error.what()));
  }
}

}  // namespace sparsecast::tools
