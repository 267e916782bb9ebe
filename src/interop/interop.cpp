// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/interop.hpp"

#include <fmt/format.h>

#include "checkpoint/checkpoint_apply.hpp"
#include "checkpoint/streaming_detectors.hpp"
#include "checkpoint/table_difference.hpp"
#include "interop/formats/packed.hpp"
#include "interop/formats/patch_store.hpp"
#include "interop/formats/slime.hpp"
#include "interop/formats/sparse_files.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/publisher.hpp"

namespace sparsecast {
namespace {

CommitRecord encode(const Checkpoint& base, const std::unique_ptr<TileDetector>& detector, const DeltaHeader& header,
                    const EncodeOptions& options, const RecordSink& sink) {
  return encode_delta(base.table(), *detector, header, options, true, sink);
}

CommitRecord read_full(FileSystem& fs, const ForeignStep& step, const Checkpoint& base, const DeltaHeader& header,
                       const EncodeOptions& options, const RecordSink& sink) {
  const Checkpoint target = Checkpoint::open(fs, step.path);
  require_same_table(base.table(), "the base", target.table(), step.path);
  return encode(base, make_checkpoint_detector(base, target), header, options, sink);
}

CommitRecord read_sparse_file(FileSystem& fs, const ForeignStep& step, const Checkpoint& base,
                              const DeltaHeader& header, const EncodeOptions& options, const RecordSink& sink) {
  const SparseStep sparse = SparseStep::open(fs, step.path, base.table());
  return encode(base, make_patch_detector(base, sparse.patches()), header, options, sink);
}

}  // namespace

CommitRecord read_foreign_step(FileSystem& fs, const ForeignStep& step, const Checkpoint& base, DeltaHeader header,
                               const EncodeOptions& options, const std::string& scratch_beside,
                               const RecordSink& sink) {
  if (step.full) return read_full(fs, step, base, header, options, sink);
  if (step.family == ForeignFamily::kTrl) return read_sparse_file(fs, step, base, header, options, sink);
  WorkDirectory scratch(fs, scratch_beside);
  PatchStore store(base.table(), scratch);
  if (step.family == ForeignFamily::kSlime) {
    slime::read_delta(fs, step.path, base, store);
  } else {
    packed::read_directory(fs, step.path, base, store);
  }
  return encode(base, make_patch_detector(base, store.patches()), header, options, sink);
}

std::vector<std::string> write_foreign_step(FileSystem& fs, const DeltaFile& delta, const Checkpoint& base,
                                            const std::string& directory, const ForeignWriteOptions& options) {
  require_same_table(base.table(), "the base", delta.table(), delta.name());
  WorkDirectory scratch(fs, directory);
  PatchStore store(base.table(), scratch);
  for_each_patch(delta, base.reader(), store.sink());
  const TensorPatches patches = store.patches();
  const DeltaHeader& header = delta.header();
  switch (options.format) {
    case ForeignFormat::kTrl:
      return {write_trl_step(fs, header, patches, base.table(), directory)};
    case ForeignFormat::kVllm:
      return {write_vllm_update(fs, header, patches, base.table(), directory)};
    case ForeignFormat::kVerl:
      return packed::write_verl(fs, header, patches, base.table(), directory, options);
    case ForeignFormat::kSlimeXor:
    case ForeignFormat::kSlimeOverwrite:
      return {slime::write_delta(fs, header, patches, base, directory, options, scratch)};
    default:
      return {packed::write_directory(fs, header, patches, base.table(), directory, options)};
  }
}

std::string write_foreign_anchor(FileSystem& fs, const Checkpoint& checkpoint, std::uint64_t version,
                                 const std::string& directory, ForeignFormat format) {
  if (format == ForeignFormat::kTrl) return write_trl_anchor(fs, checkpoint, version, directory);
  if (format == ForeignFormat::kSlimeXor || format == ForeignFormat::kSlimeOverwrite) {
    return slime::write_full(fs, checkpoint, version, directory);
  }
  throw Error(ErrorCode::kUsage, fmt::format("'{}' has no full versions", to_string(format)));
}

}  // namespace sparsecast
