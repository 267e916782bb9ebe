// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint_apply.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "checkpoint/delta_chain.hpp"
#include "checkpoint/replaced.hpp"
#include "checkpoint/undo_record.hpp"
#include "core/file_tree.hpp"
#include "core/weight_files.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

std::string file_name(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

void copy(FileSystem& fs, const std::string& from, const std::string& to, const Progress& progress) {
  const std::unique_ptr<File> source = fs.open(from, OpenMode::kRead);
  copy_file(*source, fs, to, [&](std::uint64_t done, std::uint64_t total) {
    if (progress) progress("copying", done, total);
  });
}

/// Removes a file, or a directory that holds only files. Removes a symbolic link but not its target.
void remove_checkpoint(FileSystem& fs, const std::string& path) {
  if (fs.is_directory(path) && !fs.is_link(path)) {
    for (const std::string& name : fs.list(path)) fs.remove(path + "/" + name);
  }
  fs.remove(path);
}

std::string unused_name(FileSystem& fs, const std::string& output) {
  std::string name = output + ".partial";
  for (int i = 1; fs.exists(name); ++i) name = fmt::format("{}.partial{}", output, i);
  return name;
}

/// Throws Error{kUsage} unless `output` is clearly a checkpoint, and the other files there can stay with a copy of
/// `base`.
void require_replaceable(FileSystem& fs, const std::string& output, const std::string& base, bool directory) {
  if (fs.is_directory(output) != directory) {
    throw Error(ErrorCode::kUsage, directory ? "exists and is not a directory" : "is a directory", output);
  }
  if (!directory) return;
  for (const std::string& name : fs.list(output)) {
    if (fs.is_directory(output + "/" + name)) {
      throw Error(ErrorCode::kUsage, fmt::format("will not be replaced: it holds the directory '{}'", name), output);
    }
  }
  try {
    Checkpoint::open(fs, output);
  } catch (const Error& error) {
    throw Error(ErrorCode::kUsage, fmt::format("will not be replaced: it is no checkpoint ({})", error.message()),
                output);
  }
  if (fs.exists(base + "/" + kIndexName)) return;
  const std::set<std::string> weights = weight_files(fs, output);
  for (const std::string& name : fs.list(output)) {
    if (name.ends_with(".safetensors") && !weights.contains(name)) {
      throw Error(ErrorCode::kUsage,
                  "is no file of the checkpoint here, and the new one has no index that tells them apart: move it away",
                  output + "/" + name);
    }
  }
}

}  // namespace

CheckpointCopy::CheckpointCopy(FileSystem& fs, const Checkpoint& base, const std::string& base_path, std::string output,
                               const CheckpointApplyOptions& options)
    : fs_(fs), output_(without_trailing_slashes(std::move(output))) {
  if (fs.is_link(output_)) {
    // Readers through other names would lose the link's target.
    throw Error(ErrorCode::kUsage,
                fmt::format("is a link to '{}': name that, or remove the link", fs.resolved(output_)), output_);
  }
  if (fs.exists(output_)) {
    if (fs.resolved(output_) == fs.resolved(base_path)) {
      throw Error(ErrorCode::kUsage, "is the base itself: --in-place changes it where it is", output_);
    }
    if (!options.replace) throw Error(ErrorCode::kUsage, "exists already; --force replaces it", output_);
    output_ = settled_path(fs, output_);
    require_replaceable(fs, output_, base_path, base.sharded());
  }
  staging_ = unused_name(fs, output_);
  layout_ = CheckpointLayout::of(base);
  try {
    copy_files(base, base_path, options);
  } catch (...) {
    discard();
    throw;
  }
}

CheckpointCopy::~CheckpointCopy() {
  if (!published_) discard();
}

void CheckpointCopy::discard() noexcept {
  try {
    if (fs_.exists(staging_)) remove_checkpoint(fs_, staging_);
  } catch (...) {  // If the file system fails, the temporary remains; its name identifies it.
  }
}

void CheckpointCopy::copy_files(const Checkpoint& base, const std::string& base_path,
                                const CheckpointApplyOptions& options) {
  if (!base.sharded()) {
    copy(fs_, base.files().front().path, staging_, options.progress);
    layout_.files.front() = staging_;
    return;
  }
  const std::set<std::string> weights = weight_files(fs_, base_path);
  fs_.make_directory(staging_);
  for (const std::string& name : fs_.list(base_path)) {
    const std::string from = base_path + "/" + name;
    if (is_undo_record(name) || fs_.is_directory(from)) continue;
    if (options.weights_only && !weights.contains(name)) continue;
    copy(fs_, from, staging_ + "/" + name, options.progress);
    if (options.note && name.ends_with(".safetensors") && !weights.contains(name)) {
      options.note(
          fmt::format("'{}' is not of the checkpoint's index: it is copied as it is, of whatever version", from));
    }
  }
  for (std::string& path : layout_.files) path = staging_ + "/" + file_name(path);
  fs_.sync_directory(staging_);
}

void CheckpointCopy::replace_directory() {
  const std::string previous = output_ + ".previous";
  if (fs_.exists(previous)) {
    throw Error(ErrorCode::kUsage, "is in the way: move it, it may be what an interrupted replacement left", previous);
  }
  fs_.rename(output_, previous);
  try {
    fs_.rename(staging_, output_);
  } catch (...) {
    fs_.rename(previous, output_);
    throw;
  }
  published_ = true;
  fs_.sync_directory(parent_directory(output_));
  remove_replaced(fs_, previous, output_);
}

void CheckpointCopy::publish() {
  if (fs_.is_directory(staging_) && fs_.exists(output_)) {
    replace_directory();
    return;
  }
  fs_.rename(staging_, output_);
  published_ = true;
  fs_.sync_directory(parent_directory(output_));
}

CheckpointApplyReport apply_to_copy(FileSystem& fs, const std::string& base, const std::vector<std::string>& deltas,
                                    const std::string& output, const CheckpointApplyOptions& options) {
  require_not_interrupted(fs, base);
  const Checkpoint checkpoint = Checkpoint::open(fs, base);
  const DeltaChain chain(fs, deltas, checkpoint.table(), base, options.progress);
  if (chain.size() == 0) throw Error(ErrorCode::kUsage, "no delta to apply", base);
  const DeltaFile& last = chain[chain.size() - 1];
  {
    CheckpointLayout layout = CheckpointLayout::of(checkpoint);
    layout.table = chain.table();
    CheckpointStore store(fs, std::move(layout), OpenMode::kRead);
    const StateDigest digest = sum(digest_store(store, options.threads, options.progress));
    if (!(digest == chain[0].header().base_digest)) {
      const std::size_t contained = chain.position_of(digest, base);
      throw Error(ErrorCode::kWrongBase,
                  fmt::format("the checkpoint already contains '{}'", chain[contained - 1].name()), base);
    }
  }

  CheckpointCopy copy(fs, checkpoint, base, output, options);
  CheckpointApplyReport report;
  CheckpointLayout layout = copy.layout();
  layout.table = chain.table();
  CheckpointStore store(fs, std::move(layout), OpenMode::kReadWrite);
  for (std::size_t i = 0; i < chain.size(); ++i) {
    apply_delta(store, chain[i], WriteBack::kChangedPages, options.threads, options.progress);
    report.changed += chain[i].commit().changed;
    ++report.applied;
  }
  store.sync();
  report.version = last.header().version;
  report.digest = sum(digest_store(store, options.threads, options.progress));
  if (!(report.digest == last.commit().result_digest)) {
    throw Error(ErrorCode::kDigestMismatch,
                fmt::format("the deltas lead to {}, but the last one promises {}", to_hex(report.digest.value),
                            to_hex(last.commit().result_digest.value)),
                last.name());
  }
  copy.publish();
  return report;
}

}  // namespace sparsecast
