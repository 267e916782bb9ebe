// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "checkpoint/checkpoint_store.hpp"
#include "sparsecast/delta.hpp"

namespace sparsecast {

/// Returns the path of the undo record of a checkpoint: `CHECKPOINT.undo.scd` next to a file, `sparsecast.undo.scd`
/// inside a directory. For a link to a file, the record is next to the link's target. If there is a file at this path,
/// an in-place apply was interrupted, and the content of the file can roll it back.
std::string undo_record_path(FileSystem& fs, const std::string& checkpoint);

/// Returns whether a file with this name, in the directory of a checkpoint, is the undo record of the checkpoint or a
/// leftover of one.
bool is_undo_record(const std::string& name);

/// Paths of an undo record and of the checkpoint that it belongs to.
struct FoundUndo {
  std::string record;
  std::string checkpoint;
};

/// Returns the undo record of another checkpoint that shares a file with `checkpoint`, or nullopt if there is none. The
/// other checkpoint may be a single file of this directory, the directory of this file, or a file or directory to which
/// a link in this checkpoint leads. If there is such a record, the bytes of the shared file belong to no version under
/// both names. Throws Error{kIo}.
std::optional<FoundUndo> foreign_undo_record(FileSystem& fs, const std::string& checkpoint);

/// Writes to `sink` a delta of raw values that takes the state after `delta` back to the bytes in `store`, and returns
/// its commit record. `delta` may have any value codec; the written delta holds exactly the elements that `delta`
/// alters. `store` must hold the base of `delta`, already verified by digest. Streams windows of the base, so that it
/// needs memory for one frame and one section. Ignores `options.values` and `options.threads`. Throws
/// Error{kDigestMismatch}, before the commit record goes to `sink`, if `delta` does not lead to its result digest.
CommitRecord raw_inverse(const CheckpointStore& store, const DeltaFile& delta, const EncodeOptions& options,
                         const RecordSink& sink, const Progress& progress);

/// Writes the delta that raw_inverse() makes to the file at `path`, atomically and durably. The delta can be applied
/// any number of times: its raw values restore the base from any mixture of old and new bytes. If this function throws,
/// either nothing or the whole record has become visible.
void write_undo_record(FileSystem& fs, const std::string& path, const CheckpointStore& store, const DeltaFile& delta,
                       const Progress& progress);

}  // namespace sparsecast
