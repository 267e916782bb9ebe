#pragma once

// A checkpoint on the publisher's disk that follows its log: the base of the next delta, and what anchors are made of.

#include <memory>
#include <string>

#include "sparsecast/log_follower.hpp"
#include "tools/common/parser.hpp"
#include "tools/log/log_checkpoint.hpp"
#include "tools/log/log_open.hpp"
#include "tools/common/progress.hpp"

namespace sparsecast::tools {

/// --mirror, and what maintenance it makes possible.
struct MirrorFlags {
  std::string path;
  bool anchors = true;
  bool merge = true;
  double gigabytes_per_second = 1;  ///< Of a joiner's reading: the anchor rule.

  void add_to(Parser& parser);
  LogWriterOptions writer_options(int threads) const;
};

class Mirror {
 public:
  Mirror(Console& console, ProgressBar& bar, OpenLog& log, const LogFlags& log_flags, const MirrorFlags& flags,
         int threads);

  /// To the log's newest version; made from an anchor where there is none yet.
  void bring_along();
  /// Merged deltas, and an anchor when one is due. What fails is told on stderr, and harms no version.
  void maintain(LogWriter& writer);

  std::uint64_t anchor_bytes() const noexcept { return anchor_bytes_; }  ///< Of the anchor that was written; 0: none.
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
