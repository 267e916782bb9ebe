// SPDX-License-Identifier: Apache-2.0
#include "tools/delta/diff_target.hpp"

#include "checkpoint/checkpoint_apply.hpp"
#include "checkpoint/streaming_detectors.hpp"
#include "checkpoint/table_difference.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::tools {
namespace {

bool is_sparse_step(FileSystem& fs, const std::string& path) {
  if (fs.is_directory(path)) return false;
  const std::unique_ptr<File> file = fs.open(path, OpenMode::kRead);
  try {
    return SparseStep::recognises(SafetensorsHeader::read(*file));
  } catch (const Error& error) {
    throw error.within(path);
  }
}

}  // namespace

std::unique_ptr<DiffTarget> open_diff_target(FileSystem& fs, const std::string& path, const Checkpoint& base,
                                             const std::string& base_name) {
  auto target = std::make_unique<DiffTarget>();
  if (is_sparse_step(fs, path)) {
    target->step = SparseStep::open(fs, path, base.table());
    target->detector = make_patch_detector(base, target->step->patches());
  } else {
    require_not_interrupted(fs, path);
    target->checkpoint = Checkpoint::open(fs, path);
    target->checkpoint->declare(pairs_of(base.table()));
    require_same_table(base.table(), base_name, target->checkpoint->table(), path);
    target->detector = make_checkpoint_detector(base, *target->checkpoint);
  }
  return target;
}

}  // namespace sparsecast::tools
