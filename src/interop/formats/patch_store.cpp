// SPDX-License-Identifier: Apache-2.0
#include "interop/formats/patch_store.hpp"

#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "core/file_tree.hpp"
#include "core/word.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

void check_patch(const TensorTable& table, const TensorPatch& patch) {
  const TensorSpec& spec = table[patch.tensor];
  // Negative int32 are more than any int32 as unsigned words, and so refused as out of range.
  const std::uint64_t limit = std::min<std::uint64_t>(spec.elements(), std::uint64_t{1} << 31);
  std::int64_t previous = -1;
  for (std::uint64_t i = 0; i < patch.count; ++i) {
    const auto index = std::int64_t{load_word<std::uint32_t>(patch.indices.data(), i)};
    if (index <= previous || static_cast<std::uint64_t>(index) >= limit) {
      throw Error(
          ErrorCode::kCorrupt,
          fmt::format("entry {} has index {}, which does not follow {} or is not below {}", i, index, previous, limit),
          fmt::format("tensor '{}'", spec.name));
    }
    previous = index;
  }
}

void PatchStore::add(const TensorPatch& patch) {
  seen_.resize(table_.size(), false);
  if (seen_[patch.tensor]) {
    throw Error(ErrorCode::kCorrupt, "the tensor has two patches in one version",
                fmt::format("tensor '{}'", table_[patch.tensor].name));
  }
  seen_[patch.tensor] = true;
  if (patch.count == 0) return;
  check_patch(table_, patch);
  PatchPlace place;
  place.indices = spool_.append(patch.indices);
  place.values = spool_.append(patch.values);
  patches_.push_back({patch.tensor, {}, {}, patch.count});
  places_.push_back(place);
  changed_ += patch.count;
}

const std::vector<TensorPatch>& PatchStore::patches() {
  const ConstBytes bytes = spool_.bytes();
  for (std::size_t i = 0; i < places_.size(); ++i) {
    TensorPatch& patch = patches_[i];
    patch.indices = bytes.subspan(places_[i].indices, patch.count * sizeof(std::int32_t));
    patch.values = bytes.subspan(places_[i].values, patch.count * element_size(table_[patch.tensor].dtype));
  }
  places_.clear();
  std::sort(patches_.begin(), patches_.end(),
            [](const TensorPatch& a, const TensorPatch& b) { return a.tensor < b.tensor; });
  return patches_;
}

WorkDirectory::~WorkDirectory() {
  if (path_.empty()) return;
  try {
    remove_tree(fs_, path_);
  } catch (...) {
    // Nothing more can be done here: what is left has a name that says what it is.
  }
}

std::string WorkDirectory::path(const std::string& name) {
  if (path_.empty()) {
    static std::atomic<std::uint64_t> counter{0};
    std::string path;
    do {
      path = fmt::format("{}.work.{}.{}", beside_, ::getpid(), counter++);
    } while (fs_.exists(path));
    fs_.make_directory(path);
    path_ = path;
  }
  return fmt::format("{}/{}.{}", path_, name, names_++);
}

std::uint64_t Spool::append(ConstBytes bytes) {
  const std::uint64_t begin = size();
  memory_.insert(memory_.end(), bytes.begin(), bytes.end());
  if (memory_.size() > memory_bytes_) write_out();
  return begin;
}

void Spool::write_out() {
  if (!file_) {
    path_ = scratch_->path("spool");
    file_ = scratch_->fs().open(path_, OpenMode::kCreateExclusive);
  }
  file_->write_at(in_file_, memory_);
  in_file_ += memory_.size();
  memory_.clear();
}

ConstBytes Spool::bytes() {
  if (!file_ && !mapping_) return memory_;
  if (!mapping_) {
    write_out();
    file_.reset();
    mapping_ = scratch_->fs().map(path_);
  }
  return mapping_->bytes();
}

}  // namespace sparsecast
