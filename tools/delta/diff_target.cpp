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
  const std::unique_ptr<FileMapping> mapping = fs.map(path);
  try {
    return SparseStep::recognises(SafetensorsHeader::parse(mapping->bytes(), mapping->bytes().size()));
  } catch (const Error& error) {
    throw error.within(path);
  }
}

}  // namespace

std::unique_ptr<DiffTarget> open_diff_target(FileSystem& fs, const std::string& path, const Checkpoint& base,
                                             const std::string& base_name) {
  auto target = std::make_unique<DiffTarget>();
  std::vector<const Checkpoint*> passed = {&base};
  if (is_sparse_step(fs, path)) {
    target->step = SparseStep::open(fs, path, base.table());
    target->detector = make_sparse_step_detector(base, *target->step);
  } else {
    require_not_interrupted(fs, path);
    target->checkpoint = Checkpoint::open(fs, path);
    target->checkpoint->declare(pairs_of(base.table()));
    require_same_table(base.table(), base_name, target->checkpoint->table(), path);
    target->detector = make_compare_detector(base.table(), target->checkpoint->tensors(), base.tensors());
    passed.push_back(&*target->checkpoint);
  }
  target->detector = make_releasing_detector(std::move(target->detector), passed);
  return target;
}

}  // namespace sparsecast::tools
