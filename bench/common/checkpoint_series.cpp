// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint_series.hpp"

#include <fmt/format.h>

#include "sparsecast/error.hpp"
#include "sparsecast/safetensors.hpp"

namespace sparsecast::bench {
namespace {

constexpr std::string_view kSuffix = ".safetensors";

std::vector<std::string> list_checkpoints(FileSystem& fs, const std::string& directory) {
  if (!fs.is_directory(directory)) throw Error(ErrorCode::kUsage, "not a directory of checkpoints", directory);
  if (fs.exists(directory + "/model.safetensors.index.json")) {
    throw Error(ErrorCode::kUsage, "this is one checkpoint, not a directory of successive ones", directory);
  }
  std::vector<std::string> paths;
  for (const std::string& name : fs.list(directory)) {
    const std::string path = directory + "/" + name;
    if (name.ends_with(kSuffix) || (!name.starts_with('.') && fs.is_directory(path))) paths.push_back(path);
  }
  if (paths.size() < 2) {
    throw Error(ErrorCode::kUsage, fmt::format("{} checkpoints found; at least two are needed", paths.size()),
                directory);
  }
  return paths;
}

}  // namespace

CheckpointSeries::CheckpointSeries(FileSystem& fs, const std::string& directory)
    : fs_(fs), paths_(list_checkpoints(fs, directory)) {
  if (is_sparse(paths_.front())) {
    throw Error(ErrorCode::kUsage, "the first checkpoint is a sparse step, but a whole one is needed", paths_.front());
  }
  table_ = Checkpoint::open(fs_, paths_.front()).table();
}

std::string CheckpointSeries::name(std::size_t i) const {
  const std::string name = paths_.at(i).substr(paths_.at(i).find_last_of('/') + 1);
  return name.ends_with(kSuffix) ? name.substr(0, name.size() - kSuffix.size()) : name;
}

bool CheckpointSeries::is_sparse(const std::string& path) const {
  if (fs_.is_directory(path)) return false;
  const std::unique_ptr<File> file = fs_.open(path, OpenMode::kRead);
  return SparseStep::recognises(SafetensorsHeader::read(*file));
}

void CheckpointSeries::copy_checkpoint(const std::string& path, std::span<const MutableBytes> weights) const {
  const Checkpoint checkpoint = Checkpoint::open(fs_, path);
  if (checkpoint.table().hash() != table_.hash()) {
    throw Error(ErrorCode::kTableMismatch, "its tensors are not those of the first checkpoint", path);
  }
  for (std::size_t t = 0; t < table_.size(); ++t) checkpoint.read(t, 0, weights[t]);
}

void CheckpointSeries::load_first(std::span<const MutableBytes> weights) const { copy_checkpoint(paths_[0], weights); }

void CheckpointSeries::advance(std::size_t i, std::span<const MutableBytes> weights) const {
  const std::string& path = paths_.at(i);
  if (is_sparse(path)) {
    SparseStep::open(fs_, path, table_).apply(weights);
  } else {
    copy_checkpoint(path, weights);
  }
}

}  // namespace sparsecast::bench
