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
  /// Throws Error{kUsage} for a symbolic link to nothing.
  CheckpointPlace(FileSystem& fs, const std::string& path);

  const std::string& path() const noexcept { return path_; }
  const std::string& scratch() const noexcept { return scratch_; }
  std::string next() const { return scratch_ + "/next"; }
  /// Creates the scratch directory if it is missing.
  void prepare();
  /// Finishes or rolls back a replacement that was interrupted; removes unfinished copies.
  void recover();
  /// Removes next() and the unfinished files that CheckpointCopy leaves.
  void remove_unfinished();
  /// Returns whether a checkpoint with this table may replace what is at path(): nothing, no weights, a checkpoint with
  /// the same table, or something that had this table when keep_table() was last called.
  bool may_replace(const Hash128& table_hash);
  /// Writes a note that the follower has put tensors of this table at path(), in case path() becomes unreadable.
  void keep_table(const Hash128& table_hash);
  /// Throws Error{kUsage} naming a file at path() that does not belong to the checkpoint there, and that could not be
  /// kept next to the new checkpoint in `directory`.
  void require_room(const std::string& directory);
  /// Replaces path() by the durable checkpoint `replacement`, which is in scratch().
  void replace(const std::string& replacement);
  /// Hard-links the files of the old directory that do not belong to its checkpoint into `directory`, which will
  /// replace it. Without hard links, copies the small files durably. The caller syncs the names.
  void carry_over(const std::string& directory);

  /// begin_seed() to is_seeded() are for replacing a single file that has an undo record. The record is wrong for the
  /// new file: it must not be lost before the replacement, nor believed after it. begin_seed() is called before the
  /// replacement; it durably writes a note of `expected`, the digest of the new file.
  void begin_seed(const StateDigest& expected);
  /// Ends a replacement that succeeded: removes the undo record, then the note.
  void end_seed();
  /// Ends a replacement that did not take place: removes the note and keeps the undo record.
  void forget_seed();
  /// Returns whether the note exists, so that a replacement has begun and not ended.
  bool seeding();
  /// Returns whether the file at path(), whose digest is `found`, is the new file that the note names. For recovery
  /// after a crash; the note must exist.
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
