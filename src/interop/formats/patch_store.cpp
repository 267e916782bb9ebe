// SPDX-License-Identifier: Apache-2.0
#include "interop/formats/patch_store.hpp"

#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

#include "core/file_tree.hpp"
#include "core/word.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

void check_patch(const TensorTable& table, const TensorPatch& patch) {
  const TensorSpec& spec = table[patch.tensor];
  // Negative int32 indices, read as unsigned words, exceed every valid index and are refused as out of range.
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
  const std::uint64_t indices = spool_.append(patch.indices);
  stored_.push_back({{patch.tensor, patch.count}, indices, spool_.append(patch.values)});
  changed_ += patch.count;
}

TensorPatches PatchStore::patches() const {
  std::vector<Stored> stored = stored_;
  std::sort(stored.begin(), stored.end(),
            [](const Stored& a, const Stored& b) { return a.head.tensor < b.head.tensor; });
  TensorPatches patches;
  for (const Stored& one : stored) patches.heads.push_back(one.head);
  patches.read = [this, stored = std::move(stored)](std::size_t n, Bytes& room) -> TensorPatch {
    const auto& [head, indices, values] = stored[n];
    const std::uint64_t index_bytes = head.count * sizeof(std::int32_t);
    room.resize(index_bytes + head.count * element_size(table_[head.tensor].dtype));
    const MutableBytes all = room;
    spool_.read(indices, all.first(index_bytes));
    spool_.read(values, all.subspan(index_bytes));
    return {head.tensor, all.first(index_bytes), all.subspan(index_bytes), head.count};
  };
  return patches;
}

WorkDirectory::~WorkDirectory() {
  if (path_.empty()) return;
  try {
    remove_tree(fs_, path_);
  } catch (...) {
    // Nothing more can be done here. The name of the remaining directory identifies it.
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

void Spool::read(std::uint64_t begin, MutableBytes room) const {
  const std::uint64_t from_file = begin < in_file_ ? std::min<std::uint64_t>(room.size(), in_file_ - begin) : 0;
  if (from_file != 0) file_->read_at(begin, room.first(from_file));
  const MutableBytes rest = room.subspan(from_file);
  if (!rest.empty()) std::memcpy(rest.data(), memory_.data() + (begin + from_file - in_file_), rest.size());
}

}  // namespace sparsecast
