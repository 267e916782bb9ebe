// SPDX-License-Identifier: Apache-2.0

// A checkpoint on disk that follows a log. Engines see one whole version, or an undo record that marks an unfinished
// change. In-place changes use the protocol in in_place_apply.cpp; copies and anchors use that in checkpoint_place.hpp.

#include <fmt/format.h>

#include "checkpoint/checkpoint_apply.hpp"
#include "checkpoint/delta_chain.hpp"
#include "checkpoint/table_difference.hpp"
#include "checkpoint/undo_record.hpp"
#include "core/file_tree.hpp"
#include "log/follower/checkpoint_place.hpp"
#include "log/reader/plain_deltas.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/log_follower.hpp"

namespace sparsecast {
namespace {

class CheckpointTarget : public FollowerTarget {
 public:
  CheckpointTarget(FileSystem& fs, const std::string& path, const CheckpointTargetOptions& options)
      : fs_(fs),
        place_(fs, path),
        copy_on_write_(options.copy_on_write),
        replace_(options.replace),
        keep_plain_(options.keep_plain) {
    apply_options_.threads = options.threads;
    apply_options_.progress = options.progress;
    apply_options_.note = options.note;
  }

  std::string scratch_directory() override {
    place_.prepare();
    return place_.scratch();
  }

  std::optional<StateDigest> recover() override {
    known_.reset();
    place_.recover();
    if (!has_weights()) return std::nullopt;
    remove_stale_temporaries();
    require_not_interrupted_elsewhere(fs_, place_.path());
    try {
      if (place_.seeding()) settle_seed();
      recover_checkpoint(fs_, place_.path(), apply_options_);
      known_ = read_digest(place_.path());
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kIo || error.code() == ErrorCode::kTimeout) throw;
      note(fmt::format("'{}' is beyond repair, an anchor is needed: {}", place_.path(), error.what()));
    }
    return known_;
  }

  void apply(const DeltaFile& delta) override {
    if (!known_) recover();
    if (!known_ || !(*known_ == delta.header().base_digest)) {
      throw Error(ErrorCode::kWrongBase,
                  fmt::format("it starts from digest {}, which '{}' does not have",
                              to_hex(delta.header().base_digest.value), place_.path()),
                  delta.name());
    }
    if (keep_plain_ && is_context(delta)) {
      const Checkpoint checkpoint = Checkpoint::open(fs_, place_.path());
      require_same_table(checkpoint.table(), place_.path(), delta.table(), delta.name());
      PlainDeltas(fs_, place_.path()).keep(delta, checkpoint.reader(), apply_options_.threads);
    }
    // Until this change ends, only recover() can tell the content of the target.
    const StateDigest base = *known_;
    known_.reset();
    if (copy_on_write_) {
      apply_to_next(delta);
    } else {
      apply_in_place(delta, base);
    }
    known_ = delta.commit().result_digest;
    if (!table_kept_) place_.keep_table(delta.table().hash());
    table_kept_ = true;
  }

  void require_replaceable(const Hash128& table_hash) override {
    if (replace_ || place_.may_replace(table_hash)) return;
    throw Error(ErrorCode::kUsage,
                "an anchor of the log would replace it, and it is no checkpoint of the log's tensors, or cannot be "
                "read: take another path, or --replace",
                place_.path());
  }

  void reseed(const std::string& directory, std::uint64_t, const StateDigest& expected) override {
    verify(directory, expected);
    const Hash128 table_hash = Checkpoint::open(fs_, directory).table().hash();
    require_replaceable(table_hash);
    place_.require_room(directory);
    known_.reset();
    if (is_single_file()) {
      replace_file(directory, expected);
    } else {
      make_durable(directory);
      place_.carry_over(directory);
      fs_.sync_directory(directory);
      place_.replace(directory);
    }
    known_ = expected;
    place_.keep_table(table_hash);
  }

 private:
  void note(const std::string& sentence) const {
    if (apply_options_.note) apply_options_.note(sentence);
  }

  bool is_single_file() {
    if (fs_.exists(place_.path())) return !fs_.is_directory(place_.path());
    return place_.path().ends_with(".safetensors");
  }

  bool has_weights() {
    if (!fs_.exists(place_.path())) return false;
    if (!fs_.is_directory(place_.path())) return true;
    for (const std::string& name : fs_.list(place_.path())) {
      if (name.ends_with(".safetensors")) return true;
    }
    return false;
  }

  /// Removes the temporary files of an undo record that a crash interrupted.
  void remove_stale_temporaries() {
    const std::string undo = undo_record_path(fs_, place_.path());
    const std::string directory = parent_directory(undo);
    const std::string prefix = undo.substr(undo.rfind('/') + 1) + ".tmp.";
    for (const std::string& name : fs_.list(directory)) {
      if (name.starts_with(prefix)) fs_.remove(directory + "/" + name);
    }
  }

  void settle_seed() {
    if (place_.is_seeded(read_digest(place_.path()))) {
      fs_.sync_directory(parent_directory(place_.path()));
      place_.end_seed();
    } else {
      place_.forget_seed();
    }
  }

  StateDigest read_digest(const std::string& path) {
    const CheckpointStore store(Checkpoint::open(fs_, path));
    return sum(digest_store(store, apply_options_.threads, apply_options_.progress));
  }

  void verify(const std::string& path, const StateDigest& expected) {
    const CheckpointStore store(Checkpoint::open(fs_, path));
    require_anchor_digest(store, expected, path, apply_options_.threads, apply_options_.progress);
  }

  void apply_in_place(const DeltaFile& delta, const StateDigest& base) {
    try {
      apply_to_verified_base(fs_, place_.path(), delta, apply_options_);
    } catch (const Error&) {
      roll_back(base);
      throw;
    }
  }

  /// Rolls the target back at once, so that engines need not wait for the next step to see a whole version.
  void roll_back(const StateDigest& base) {
    try {
      recover_checkpoint(fs_, place_.path(), apply_options_);
      known_ = base;
    } catch (const Error&) {  // If the failure persists, recover() reports it.
    }
  }

  void apply_to_next(const DeltaFile& delta) {
    place_.remove_unfinished();
    {
      const Checkpoint base = Checkpoint::open(fs_, place_.path());
      require_same_table(base.table(), place_.path(), delta.table(), delta.name());
      delta.report();
      CheckpointApplyOptions weights = apply_options_;
      weights.weights_only = true;
      CheckpointCopy copy(fs_, base, place_.path(), place_.next(), weights);
      CheckpointStore store(fs_, copy.layout(), OpenMode::kReadWrite);
      apply_delta(store, delta, WriteBack::kChangedPages, apply_options_.threads, apply_options_.progress);
      store.sync();
      const StateDigest result = sum(digest_store(store, apply_options_.threads, apply_options_.progress));
      if (!(result == delta.commit().result_digest)) {
        throw Error(ErrorCode::kDigestMismatch,
                    fmt::format("the copy has digest {} after it, not {}", to_hex(result.value),
                                to_hex(delta.commit().result_digest.value)),
                    delta.name());
      }
      copy.publish();
    }
    if (fs_.is_directory(place_.next())) {
      place_.carry_over(place_.next());
      fs_.sync_directory(place_.next());
    }
    place_.replace(place_.next());
  }

  void replace_file(const std::string& directory, const StateDigest& expected) {
    const Checkpoint anchor = Checkpoint::open(fs_, directory);
    if (anchor.files().size() != 1) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("the anchor has {} files: follow into a directory, not a file", anchor.files().size()),
                  place_.path());
    }
    const std::string file = anchor.files().front().path;
    fs_.open(file, OpenMode::kReadWrite)->sync();
    const bool has_undo = fs_.exists(undo_record_path(fs_, place_.path()));
    if (has_undo) place_.begin_seed(expected);
    place_.replace(file);
    if (has_undo) place_.end_seed();
  }

  void make_durable(const std::string& directory) {
    for (const std::string& name : fs_.list(directory)) {
      fs_.open(directory + "/" + name, OpenMode::kReadWrite)->sync();
    }
    fs_.sync_directory(directory);
  }

  FileSystem& fs_;
  CheckpointPlace place_;
  const bool copy_on_write_;
  const bool replace_;
  const bool keep_plain_;
  CheckpointApplyOptions apply_options_;
  bool table_kept_ = false;           ///< True if keep_table() has been called since the start.
  std::optional<StateDigest> known_;  ///< Digest of the target, verified since the start by reading all of it.
};

}  // namespace

std::unique_ptr<FollowerTarget> make_checkpoint_target(FileSystem& fs, const std::string& path,
                                                       const CheckpointTargetOptions& options) {
  return std::make_unique<CheckpointTarget>(fs, path, options);
}

}  // namespace sparsecast
