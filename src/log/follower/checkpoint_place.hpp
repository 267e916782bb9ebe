// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "sparsecast/digest.hpp"
#include "sparsecast/io.hpp"

namespace sparsecast {

/// Paths of a followed checkpoint, and the steps that replace it by a whole new one, so that a crash at any moment
/// leaves the old or the new one. Names: PATH is the checkpoint, FOLLOW = PATH.follow.
///
///     file:       rename FOLLOW/next -> PATH
///     directory:  rename PATH -> FOLLOW/previous | sync | rename FOLLOW/... -> PATH | sync | remove FOLLOW/previous
///
/// Recovery: if only FOLLOW/previous exists, it is renamed back to PATH. If both exist, PATH is the new checkpoint,
/// whole and durable: files in FOLLOW/previous that do not belong to the old checkpoint are moved over, and the rest is
/// removed. Only the files that its index names belong to it (weight_files()).
class CheckpointPlace {
 public:
  /// Makes the place of the checkpoint at `path`. If `path` is a symbolic link to a directory, it is resolved once,
  /// here. Throws Error{kUsage} if `path` is empty or a symbolic link to nothing.
  CheckpointPlace(FileSystem& fs, const std::string& path);

  const std::string& path() const noexcept { return path_; }
  /// Returns the path of the directory FOLLOW.
  const std::string& scratch() const noexcept { return scratch_; }
  /// Returns the path at which a new checkpoint is written before it replaces the old one.
  std::string next() const { return scratch_ + "/next"; }
  /// Creates scratch() durably if it is missing.
  void prepare();
  /// Must be called after a crash: finishes or undoes a replacement that was interrupted, and removes unfinished
  /// copies.
  void recover();
  /// Removes next(), and the unfinished files that CheckpointCopy and the notes leave after a crash.
  void remove_unfinished();
  /// Returns whether a checkpoint whose table has this hash may replace what is at path(). It may if there is nothing,
  /// a directory without weights, or a checkpoint with the same table, or if keep_table() was last called with this
  /// hash.
  bool may_replace(const Hash128& table_hash);
  /// Writes a note in scratch(), which says that the follower has put tensors of the table with this hash at path().
  /// may_replace() needs the note if the checkpoint at path() becomes unreadable.
  void keep_table(const Hash128& table_hash);
  /// Throws Error{kUsage} naming a file at path() that does not belong to the old checkpoint, if that file cannot be
  /// kept next to the new checkpoint in `directory`: the new checkpoint has a file of the same name, or has no index
  /// that tells its own .safetensors files from others.
  void require_room(const std::string& directory);
  /// Renames `replacement`, the path of a durable checkpoint in scratch(), to path(), where it replaces what is there.
  void replace(const std::string& replacement);
  /// Hard-links the files of the old directory that do not belong to the old checkpoint into `directory`, the new
  /// checkpoint, which will replace the old directory. Without hard links, copies the small files durably. The caller
  /// must make the names durable.
  void carry_over(const std::string& directory);

  /// Begins the replacement of a single file that has an undo record: durably writes a note of `expected`, the digest
  /// of the new file. The undo record is wrong for the new file. It must not be lost before the replacement, nor be
  /// used after it. So begin_seed() is called before the replacement, and end_seed() or forget_seed() after it. After a
  /// crash, seeding() and is_seeded() tell which of the two must be called.
  void begin_seed(const StateDigest& expected);
  /// Ends a replacement that succeeded: removes the undo record, then the note of begin_seed().
  void end_seed();
  /// Ends a replacement that did not take place: removes the note of begin_seed() and keeps the undo record.
  void forget_seed();
  /// Returns whether the note of begin_seed() exists, which means that a replacement has begun and not ended.
  bool seeding();
  /// Returns whether the file at path(), whose digest is `found`, is the new file that the note of begin_seed() names.
  /// The note must exist.
  bool is_seeded(const StateDigest& found);

 private:
  std::string previous() const { return scratch_ + "/previous"; }
  std::string table_note() const { return scratch_ + "/table"; }
  std::string read_note(const std::string& path);
  std::string seed_note() const { return scratch_ + "/replacing"; }
  void replace_directory(const std::string& replacement);
  void remove_previous();
  void sync_names();

  FileSystem& fs_;
  std::string path_;
  std::string scratch_;
};

}  // namespace sparsecast
