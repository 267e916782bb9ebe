// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "checkpoint/checkpoint_store.hpp"
#include "sparsecast/delta.hpp"

namespace sparsecast {

/// Returns the path of the undo record: `CHECKPOINT.undo.scd` beside a file, `sparsecast.undo.scd` inside a directory.
/// A link to a file has the record of the file that it leads to. Its presence means that an in-place apply was
/// interrupted; its content can roll that back.
std::string undo_record_path(FileSystem& fs, const std::string& checkpoint);

/// Returns whether a file of this name in the directory of a checkpoint is its undo record, or what a crash left of
/// one.
bool is_undo_record(const std::string& name);

/// An undo record, and the checkpoint that it is of.
struct FoundUndo {
  std::string record;
  std::string checkpoint;
};

/// Returns an undo record of another checkpoint to which a file of this one belongs, too: a file of a directory that is
/// followed by itself, a directory of which one file was, or one whose files are links into another. Their bytes are as
/// torn by this name as by the other one. Throws Error{kIo}.
std::optional<FoundUndo> foreign_undo_record(FileSystem& fs, const std::string& checkpoint);

/// The `raw` delta that takes the state after `delta` back to the bytes in `store`, which are the delta's base (already
/// verified by digest), whatever the delta's own value codec: what `delta` alters, and nothing else. Streams windows of
/// the base, so that memory is one frame and one section. `options.values` and `options.threads` are ignored. Throws
/// Error{kDigestMismatch}, before the commit record goes to `sink`, when the delta does not lead to the digest that it
/// promises.
CommitRecord raw_inverse(const CheckpointStore& store, const DeltaFile& delta, const EncodeOptions& options,
                         const RecordSink& sink, const Progress& progress);

/// Writes that delta atomically and durably. Raw values make it idempotent: it restores the base from any mixture of
/// old and new bytes. When it throws, nothing has become visible, or the whole record has.
void write_undo_record(FileSystem& fs, const std::string& path, const CheckpointStore& store, const DeltaFile& delta,
                       const Progress& progress);

}  // namespace sparsecast
