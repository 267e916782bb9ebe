// SPDX-License-Identifier: Apache-2.0
#include "interop/formats/directory_output.hpp"

#include "sparsecast/error.hpp"

namespace sparsecast {

void make_output_directory(FileSystem& fs, const std::string& path) {
  if (fs.is_directory(path)) return;
  if (fs.exists(path)) throw Error(ErrorCode::kUsage, "is no directory", path);
  fs.make_directory(path);
  fs.sync_directory(parent_directory(path));
}

void require_absent(FileSystem& fs, const std::string& path) {
  if (fs.exists(path)) throw Error(ErrorCode::kUsage, "the output exists; it is not overwritten", path);
}

DirectoryOutput::DirectoryOutput(FileSystem& fs, std::string path)
    : fs_(fs), path_(std::move(path)), staging_(path_ + ".partial") {
  require_absent(fs_, path_);
  if (fs_.exists(staging_)) {
    throw Error(ErrorCode::kUsage, "an interrupted attempt has left this; remove it", staging_);
  }
  make_output_directory(fs_, parent_directory(path_));
  fs_.make_directory(staging_);
}

DirectoryOutput::~DirectoryOutput() {
  if (published_) return;
  try {
    for (const std::string& name : fs_.list(staging_)) fs_.remove(path(name));
    fs_.remove(staging_);
  } catch (...) {
    // Nothing more can be done here. The name of the remaining directory identifies it.
  }
}

void DirectoryOutput::write_text(const std::string& name, const std::string& text) {
  AtomicFile file(fs_, path(name));
  file.append(std::as_bytes(std::span<const char>(text)));
  file.commit();
}

std::string DirectoryOutput::publish() {
  fs_.sync_directory(staging_);
  fs_.rename(staging_, path_);
  published_ = true;
  fs_.sync_directory(parent_directory(path_));
  return path_;
}

}  // namespace sparsecast
