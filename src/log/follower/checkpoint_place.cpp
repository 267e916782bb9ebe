// SPDX-License-Identifier: Apache-2.0
#include "log/follower/checkpoint_place.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "checkpoint/replaced.hpp"
#include "checkpoint/table_difference.hpp"
#include "checkpoint/undo_record.hpp"
#include "core/file_tree.hpp"
#include "core/weight_files.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

constexpr std::uint64_t kSmallFileBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kMaxNoteBytes = 256;

/// Hard-links a file that holds no weights to a second name. Without hard links, copies a small file and leaves a large
/// one, which is moved once the new directory is in place.
void carry(FileSystem& fs, const std::string& from, const std::string& to) {
  if (fs.link(from, to) || fs.is_link(from)) return;
  const std::unique_ptr<File> source = fs.open(from, OpenMode::kRead);
  if (source->size() <= kSmallFileBytes) copy_file(*source, fs, to);
}

}  // namespace

CheckpointPlace::CheckpointPlace(FileSystem& fs, const std::string& path)
    // A symbolic link to a directory is resolved once, here: the link itself is never renamed, and changing it later
    // has no effect. A symbolic link to a file is itself replaced.
    : fs_(fs), path_(settled_path(fs, path)), scratch_(path_ + ".follow") {
  if (path_.empty()) throw Error(ErrorCode::kUsage, "the checkpoint to keep up to date has no name");
}

void CheckpointPlace::prepare() {
  if (fs_.is_directory(scratch_)) return;
  fs_.make_directory(scratch_);
  fs_.sync_directory(parent_directory(scratch_));
}

void CheckpointPlace::sync_names() {
  fs_.sync_directory(parent_directory(path_));
  fs_.sync_directory(scratch_);
}

void CheckpointPlace::recover() {
  prepare();
  if (fs_.exists(previous())) {
    if (fs_.exists(path_)) {
      sync_names();  // The last process may have ended at an error of this very fsync.
      remove_previous();
    } else {
      fs_.rename(previous(), path_);
      sync_names();
    }
  }
  remove_unfinished();
}

void CheckpointPlace::remove_unfinished() {
  for (const std::string& name : fs_.list(scratch_)) {
    const bool unfinished = name == "next" || name.starts_with("next.partial") || name.starts_with("replacing.tmp.") ||
                            name.starts_with("table.tmp.");
    if (unfinished) remove_tree(fs_, scratch_ + "/" + name);
  }
}

void CheckpointPlace::replace(const std::string& replacement) {
  fs_.sync_directory(scratch_);  // A name must be durable before it is renamed.
  if (fs_.is_directory(replacement) && fs_.exists(path_)) {
    replace_directory(replacement);
    return;
  }
  fs_.rename(replacement, path_);
  sync_names();
}

void CheckpointPlace::replace_directory(const std::string& replacement) {
  fs_.rename(path_, previous());
  try {
    sync_names();
    fs_.rename(replacement, path_);
    sync_names();
  } catch (const Error&) {
    if (!fs_.exists(path_)) fs_.rename(previous(), path_);
    throw;
  }
  remove_previous();
}

void CheckpointPlace::remove_previous() {
  remove_replaced(fs_, previous(), path_);
  fs_.sync_directory(scratch_);
}

void CheckpointPlace::require_room(const std::string& directory) {
  if (!fs_.is_directory(path_)) return;
  const std::set<std::string> weights = weight_files(fs_, path_);
  const std::vector<std::string> coming = fs_.list(directory);
  const bool indexed = fs_.exists(directory + "/" + kIndexName);
  for (const std::string& name : fs_.list(path_)) {
    if (weights.contains(name) || is_undo_record(name)) continue;
    const std::string file = path_ + "/" + name;
    if (std::find(coming.begin(), coming.end(), name) != coming.end()) {
      throw Error(ErrorCode::kUsage,
                  "is no file of the checkpoint here, and the new one has a file of this name: move it away", file);
    }
    if (!indexed && name.ends_with(".safetensors")) {
      throw Error(ErrorCode::kUsage,
                  "is no file of the checkpoint here, and the new one has no index that tells them apart: move it away",
                  file);
    }
  }
}

bool CheckpointPlace::may_replace(const Hash128& table_hash) {
  if (!fs_.exists(path_)) return true;
  if (fs_.is_directory(path_)) {
    const std::vector<std::string> names = fs_.list(path_);
    const auto is_weights = [](const std::string& name) {
      return name.ends_with(".safetensors") || name == kIndexName;
    };
    if (std::none_of(names.begin(), names.end(), is_weights)) return true;
  }
  if (is_checkpoint_of(fs_, path_, table_hash)) return true;
  const std::string expected = to_hex(table_hash);
  return fs_.exists(table_note()) && read_note(table_note()) == expected;
}

void CheckpointPlace::keep_table(const Hash128& table_hash) {
  const std::string text = to_hex(table_hash);
  if (fs_.exists(table_note()) && read_note(table_note()) == text) return;
  AtomicFile note(fs_, table_note());
  note.append(std::as_bytes(std::span<const char>(text)));
  note.commit();
}

void CheckpointPlace::carry_over(const std::string& directory) {
  if (!fs_.is_directory(path_)) return;
  const std::set<std::string> weights = weight_files(fs_, path_);
  for (const std::string& name : fs_.list(path_)) {
    const std::string from = path_ + "/" + name;
    const std::string to = directory + "/" + name;
    if (weights.contains(name) || is_undo_record(name) || fs_.is_directory(from) || fs_.exists(to)) continue;
    carry(fs_, from, to);
  }
}

void CheckpointPlace::begin_seed(const StateDigest& expected) {
  AtomicFile note(fs_, seed_note());
  const std::string text = to_hex(expected.value);
  note.append(std::as_bytes(std::span<const char>(text)));
  note.commit();
}

void CheckpointPlace::end_seed() {
  const std::string undo = undo_record_path(fs_, path_);
  if (fs_.exists(undo)) fs_.remove(undo);
  fs_.sync_directory(parent_directory(undo));
  if (fs_.exists(seed_note())) fs_.remove(seed_note());
  fs_.sync_directory(scratch_);
}

void CheckpointPlace::forget_seed() { fs_.remove(seed_note()); }

bool CheckpointPlace::seeding() { return fs_.exists(seed_note()); }

bool CheckpointPlace::is_seeded(const StateDigest& found) { return read_note(seed_note()) == to_hex(found.value); }

/// Returns the text of a note, or an empty string if it is too long to be one.
std::string CheckpointPlace::read_note(const std::string& path) {
  const std::unique_ptr<File> note = fs_.open(path, OpenMode::kRead);
  if (note->size() > kMaxNoteBytes) return {};
  std::string text(note->size(), '\0');
  note->read_at(0, std::as_writable_bytes(std::span<char>(text)));
  return text;
}

}  // namespace sparsecast
