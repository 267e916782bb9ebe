// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "sparsecast/digest.hpp"
#include "sparsecast/hash.hpp"
#include "sparsecast/io.hpp"

namespace sparsecast {

/// Paths of a followed checkpoint, and the steps by which a whole new one takes its place so that a crash at any moment
/// leaves one of the two. Names: PATH is the checkpoint, FOLLOW = PATH.follow.
///
///     file:       rename FOLLOW/next -> PATH
///     directory:  rename PATH -> FOLLOW/previous | sync | rename FOLLOW/... -> PATH | sync | remove FOLLOW/previous
///
/// Recovery: PATH missing and FOLLOW/previous there: it goes back. Both there: the new one is whole and durable, so
/// what is left of the old one is removed, after files that are not of it have been moved over. Of the old one is only
/// what its index names (weight_files()).
class CheckpointPlace {
 public:
  /// Throws Error{kUsage} for a link to nothing.
  CheckpointPlace(FileSystem& fs, const std::string& path);

  const std::string& path() const noexcept { return path_; }
  const std::string& scratch() const noexcept { return scratch_; }
  std::string next() const { return scratch_ + "/next"; }
  /// Makes the scratch directory when it is missing.
  void prepare();
  /// Finishes or rolls back a replacement that was interrupted; removes unfinished copies.
  void recover();
  /// Removes `next()` and what CheckpointCopy leaves of it.
  void remove_unfinished();
  /// Returns whether a checkpoint of tensors of this table may replace what is at path(): nothing or no weights, a
  /// checkpoint of the same tensors, or what had been one when keep_table() was called last.
  bool may_replace(const Hash128& table_hash);
  /// Notes that path() holds tensors of this table by our hand, for the day when it cannot be read.
  void keep_table(const Hash128& table_hash);
  /// Throws Error{kUsage} that names a file at path() that is not of the checkpoint there, and could not be kept beside
  /// the one in `directory`.
  void require_room(const std::string& directory);
  /// Puts the durable checkpoint `replacement`, below scratch(), where path() is.
  void replace(const std::string& replacement);
  /// Links the files of the old directory that are not of its checkpoint into `directory`, so that they are there when
  /// it takes the old one's place; without hard links the small ones are copied, durably. The caller syncs the names.
  void carry_over(const std::string& directory);

  /// A single file that is replaced while an undo record lies beside it: what the record says about the new file is
  /// wrong, and must neither be lost before nor believed after. begin_seed() notes the new digest; end_seed() removes
  /// record and note, forget_seed() the note alone; is_seeded() says after a crash that the file is the new one, given
  /// its digest.
  void begin_seed(const StateDigest& expected);
  void end_seed();
  void forget_seed();
  bool seeding();
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
