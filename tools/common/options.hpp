// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sparsecast/delta.hpp"
#include "sparsecast/safetensors.hpp"
#include "tools/common/cli.hpp"
#include "tools/common/parser.hpp"

namespace sparsecast::tools {

/// Options of every command that writes a delta. The value codec is an option only where it can be chosen.
struct EncodeFlags {
  std::string positions = "auto";
  std::string values = "ulp";
  std::string objective = "size";
  std::uint32_t block_changes = 0;  ///< Changes per block; 0 for those of the objective.
  int zstd_level = 0;
  int threads = 0;
  std::uint32_t frame_mb = 16;
  std::string output;

  void add_to(Parser& parser, bool with_values);
  /// Adds all options but --output to a command; `with_values` says whether the value codec can be chosen.
  void add_codec_to(Parser& parser, bool with_values);
  EncodeOptions options() const;
};

/// Options of commands that read checkpoints, for dtypes that files do not declare: `--dtype PATTERN=I4X2`.
struct DTypeFlags {
  std::vector<std::string> dtypes;

  void add_to(Parser& parser);
  /// Makes the tensors that the options name pairs of 4-bit numbers in `checkpoint`. Throws Error{kUsage} for an option
  /// that is not PATTERN=I4X2 or PATTERN=F4X2, for a pattern that no tensor has, and for a tensor that cannot hold
  /// pairs.
  void declare(Checkpoint& checkpoint) const;
};

void add_threads(Parser& parser, int& threads);
void add_json(Parser& parser, bool& json);

/// Writes a delta file that appears under its name, complete, at commit(). Replaces an existing delta; throws
/// Error{kUsage} if anything else has that name.
class DeltaOutput {
 public:
  DeltaOutput(FileSystem& fs, const std::string& path);
  RecordSink sink();
  std::uint64_t bytes() const noexcept { return file_.size(); }
  void commit() { file_.commit(); }

 private:
  AtomicFile file_;
};

}  // namespace sparsecast::tools
