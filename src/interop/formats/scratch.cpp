#include "interop/formats/scratch.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>

#include "core/file_tree.hpp"

namespace sparsecast {

ScratchDirectory::~ScratchDirectory() {
  if (path_.empty()) return;
  try {
    remove_tree(fs_, path_);
  } catch (...) {
    // Nothing more can be done here: what is left has a name that says what it is.
  }
}

std::string ScratchDirectory::path(const std::string& name) {
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
