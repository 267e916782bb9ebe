// SPDX-License-Identifier: Apache-2.0
#pragma once

// The mirror: a checkpoint on the disk of the publisher that follows its log, as the base of the next delta and the
// source of anchors.

#include <memory>
#include <string>

#include "sparsecast/log_follower.hpp"
#include "tools/common/parser.hpp"
#include "tools/common/progress.hpp"
#include "tools/log/log_checkpoint.hpp"
#include "tools/log/log_open.hpp"

namespace sparsecast::tools {

/// Values of the option --mirror, and of the options of the maintenance that needs a mirror.
struct MirrorFlags {
  std::string path;
  bool replace = false;
  bool anchors = true;
  bool merge = true;
  /// Assumed read speed of a joining follower in GB/s, for the rule that decides when an anchor is due.
  double gigabytes_per_second = 1;

  void add_to(Parser& parser);
  LogWriterOptions writer_options(int threads) const;
};

class Mirror {
 public:
  Mirror(Console& console, ProgressBar& bar, OpenLog& log, const LogFlags& log_flags, const MirrorFlags& flags,
         int threads);

  /// Updates the mirror to the newest version of the log. If there is no mirror yet, creates it from an anchor.
  void bring_along();
  /// Writes merged deltas to the log, and an anchor if one is due. A failure is reported on stderr and kept in
  /// maintenance_error(); it harms no version.
  void maintain(LogWriter& writer);

  std::uint64_t anchor_bytes() const noexcept {
    return anchor_bytes_;
  }  ///< Bytes of the anchor that was written; 0 if none was.
  /// Returns the number of merged deltas that were written.
  std::uint64_t merged() const noexcept { return merged_; }
  const std::string& maintenance_error() const noexcept { return maintenance_error_; }

 private:
  Console& console_;
  ProgressBar& bar_;
  MirrorFlags flags_;
  CheckpointFollower follower_;
  std::uint64_t anchor_bytes_ = 0;
  std::uint64_t merged_ = 0;
  std::string maintenance_error_;
};

}  // namespace sparsecast::tools
