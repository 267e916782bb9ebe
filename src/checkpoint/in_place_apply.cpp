// SPDX-License-Identifier: Apache-2.0

// Crash-safe apply to the files of a checkpoint.
//
//                          write undo record (atomic, durable)
//        CLEAN(base) ------------------------------------------> ARMED(base, undo)
//            ^                                                        | write changed pages
//            |                                                        v
//            |   recover: verify by digest where the undo leads,   MIXED(undo)
//            |   write it, fsync, read back and verify,                | fsync all files, read back and
//            +---- remove the undo record <---------------------------| verify the result digest
//                                                                     v
//        CLEAN(result) <----------------------------------------- VERIFIED(result, undo)
//                          remove undo record, fsync directory
//
// Before the state CLEAN(base) ends, the delta has been decoded to its last block, the base digest verified by reading
// the whole base, and the result digest computed from the delta and the base. So a delta that does not lead to its
// result digest never causes a write. A crash or an error
//   - while the undo record is written leaves the base and at most a stray temporary file (AtomicFile);
//   - in ARMED, MIXED or VERIFIED leaves the undo record, and the next run goes back to the base. The record holds the
//     absolute value of every element that the delta alters, so any mixture of old, new and torn pages goes back, any
//     number of times;
//   - after the removal, before the directory's fsync, may bring the record back: the next run then goes back from the
//     whole result to the base. Success is reported only after that fsync, by this run or a later one.
// Recovery writes whole windows, not only bytes that read differently: after a failed fsync, the page cache may show
// bytes that are not on the disk. It first computes the digest that the record leads to, so that a stale record next to
// a replaced checkpoint writes nothing.

#include <fmt/format.h>

#include "checkpoint/checkpoint_apply.hpp"
#include "checkpoint/delta_chain.hpp"
#include "checkpoint/table_difference.hpp"
#include "checkpoint/undo_record.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

void note(const CheckpointApplyOptions& options, const std::string& sentence) {
  if (options.note) options.note(sentence);
}

CheckpointLayout layout_of(FileSystem& fs, const std::string& path) {
  return CheckpointLayout::of(Checkpoint::open(fs, path));
}

/// Throws Error{kUsage} for a file with other names (hard or symbolic links, as in content-addressed caches and
/// hard-linked backups). Readers by these names would get the changed bytes and, after an interruption, torn bytes
/// without a mark.
void require_no_other_names(FileSystem& fs, const CheckpointLayout& layout) {
  constexpr const char* kWayOut =
      "write the result elsewhere (-o OUT; for a follower --copy-on-write), or copy it first";
  for (const std::string& file : layout.files) {
    if (fs.is_link(file)) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("is not changed in place: it is a link to '{}'; {}", fs.resolved(file), kWayOut), file);
    }
    if (const std::uint64_t names = fs.names(file); names > 1) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("is not changed in place: the file has {} names (hard links); {}", names, kWayOut), file);
    }
  }
}

[[noreturn]] void refuse_torn(const FoundUndo& found) {
  throw Error(ErrorCode::kDirty,
              fmt::format("an in-place apply was interrupted, the bytes are of no version: run `sparsecast apply "
                          "--recover {}` first",
                          found.checkpoint),
              found.record);
}

StateDigest read_digest(const CheckpointStore& store, const CheckpointApplyOptions& options) {
  return sum(digest_store(store, options.threads, options.progress));
}

void remove_durably(FileSystem& fs, const std::string& path) {
  fs.remove(path);
  fs.sync_directory(parent_directory(path));
}

/// Takes the state from ARMED to VERIFIED. The undo record is on disk.
void write_and_verify(CheckpointStore& store, const DeltaFile& delta, const CheckpointApplyOptions& options) {
  apply_delta(store, delta, WriteBack::kChangedPages, options.threads, options.progress);
  store.sync();
  const StateDigest result = read_digest(store, options);
  if (!(result == delta.commit().result_digest)) {
    throw Error(ErrorCode::kDigestMismatch, fmt::format("reading back gives digest {}, not {}", to_hex(result.value),
                                                        to_hex(delta.commit().result_digest.value)));
  }
}

/// Takes the state from CLEAN(base) to CLEAN(result); the base digest has been verified.
void apply_one(FileSystem& fs, const std::string& checkpoint, CheckpointStore& store, const DeltaFile& delta,
               const CheckpointApplyOptions& options) {
  const std::string undo = undo_record_path(fs, checkpoint);
  write_undo_record(fs, undo, store, delta, options.progress);
  try {
    DeltaFile::open(fs, undo);
    write_and_verify(store, delta, options);
    remove_durably(fs, undo);
  } catch (const Error& error) {
    throw Error(error.code(),
                fmt::format("{}. '{}' is between two versions until the next in-place apply, or "
                            "`sparsecast apply --recover`, has taken this one back (undo record: '{}')",
                            error.message(), checkpoint, undo),
                error.context());
  }
}

}  // namespace

bool recover_checkpoint(FileSystem& fs, const std::string& checkpoint, const CheckpointApplyOptions& options) {
  require_not_interrupted_elsewhere(fs, checkpoint);
  const std::string undo_path = undo_record_path(fs, checkpoint);
  if (!fs.exists(undo_path)) {
    // The last run may have failed in this very fsync. Once the state is reported as clean, the record must not
    // reappear after a power loss.
    fs.sync_directory(parent_directory(undo_path));
    return false;
  }
  const DeltaFile undo = DeltaFile::open(fs, undo_path);
  CheckpointLayout layout = layout_of(fs, checkpoint);
  layout.table = with_pairs(layout.table, pairs_of(undo.table()));
  CheckpointStore store(fs, std::move(layout), OpenMode::kReadWrite);
  require_same_table(store.table(), checkpoint, undo.table(), undo_path);
  undo.report();
  if (undo.header().values != ValueCodec::kRaw) {
    throw Error(ErrorCode::kCorrupt, "an undo record must have raw values", undo_path);
  }
  const StateDigest promised = undo.commit().result_digest;
  const StateDigest state = read_digest(store, options);
  if (!(predict_digest(store, undo, state, options.threads) == promised)) {
    throw Error(ErrorCode::kDirty,
                fmt::format("the undo record does not lead to digest {} from here: '{}' was changed after the "
                            "interruption. Nothing was written. If the checkpoint was replaced on purpose, "
                            "remove the record",
                            to_hex(promised.value), checkpoint),
                undo_path);
  }
  apply_delta(store, undo, WriteBack::kWholeWindows, options.threads, options.progress);
  store.sync();
  if (!(read_digest(store, options) == promised)) {
    throw Error(ErrorCode::kDirty, "the restored bytes do not read back as written; the undo record is kept",
                undo_path);
  }
  remove_durably(fs, undo_path);
  note(options, fmt::format("an interrupted apply was found and rolled back: '{}' is at version {} again", checkpoint,
                            undo.header().version));
  return true;
}

void require_not_interrupted(FileSystem& fs, const std::string& checkpoint) {
  const std::string undo = undo_record_path(fs, checkpoint);
  if (fs.exists(undo)) refuse_torn({undo, checkpoint});
  require_not_interrupted_elsewhere(fs, checkpoint);
}

void require_not_interrupted_elsewhere(FileSystem& fs, const std::string& checkpoint) {
  if (const std::optional<FoundUndo> found = foreign_undo_record(fs, checkpoint)) refuse_torn(*found);
}

CheckpointApplyReport apply_in_place(FileSystem& fs, const std::string& checkpoint,
                                     const std::vector<std::string>& deltas, const CheckpointApplyOptions& options) {
  CheckpointApplyReport report;
  report.recovered = recover_checkpoint(fs, checkpoint, options);
  CheckpointLayout layout = layout_of(fs, checkpoint);
  require_no_other_names(fs, layout);
  const DeltaChain chain(fs, deltas, layout.table, checkpoint, options.progress);
  if (chain.size() == 0) throw Error(ErrorCode::kUsage, "no delta to apply", checkpoint);
  layout.table = chain.table();
  CheckpointStore store(fs, std::move(layout), OpenMode::kReadWrite);

  report.digest = read_digest(store, options);
  report.already_applied = chain.position_of(report.digest, checkpoint);
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const DeltaFile& delta = chain[i];
    report.version = delta.header().version;
    if (i < report.already_applied) {
      note(options, fmt::format("'{}' is already applied", delta.name()));
      continue;
    }
    apply_one(fs, checkpoint, store, delta, options);
    report.digest = delta.commit().result_digest;
    report.changed += delta.commit().changed;
    ++report.applied;
  }
  return report;
}

StateDigest apply_to_verified_base(FileSystem& fs, const std::string& checkpoint, const DeltaFile& delta,
                                   const CheckpointApplyOptions& options) {
  CheckpointLayout layout = layout_of(fs, checkpoint);
  require_no_other_names(fs, layout);
  CheckpointStore store(fs, std::move(layout), OpenMode::kReadWrite);
  require_same_table(store.table(), checkpoint, delta.table(), delta.name());
  delta.report();
  apply_one(fs, checkpoint, store, delta, options);
  return delta.commit().result_digest;
}

}  // namespace sparsecast
