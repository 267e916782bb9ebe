// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/undo_record.hpp"

#include <fmt/format.h>

#include <optional>
#include <set>
#include <vector>

#include "codec/apply.hpp"
#include "codec/frame_reader.hpp"
#include "codec/frame_writer.hpp"
#include "codec/kernels.hpp"
#include "core/weight_files.hpp"
#include "core/word.hpp"

namespace sparsecast {
namespace {

constexpr const char* kUndoName = "sparsecast.undo.scd";

DeltaHeader inverse_header(const DeltaFile& delta, const EncodeOptions& options) {
  if (options.positions == PositionMode::kContext) {
    throw Error(ErrorCode::kUsage, "'context' positions need 'ulp' values, and the inverse has 'raw' ones",
                delta.name());
  }
  DeltaHeader header = delta.header();
  header.version = delta.header().base_version;
  header.base_version = delta.header().version;
  header.base_digest = delta.commit().result_digest;
  header.frame_capacity = options.frame_capacity;
  header.positions = options.positions;
  header.values = ValueCodec::kRaw;
  return header;
}

/// Applies the delta's blocks to windows of the base and gathers, section by section, the bits that they overwrite.
class UndoBuilder {
 public:
  UndoBuilder(const CheckpointStore& store, const DeltaHeader& header, int zstd_level, const RecordSink& sink)
      : store_(store), positions_mode_(header.positions), writer_(header, zstd_level, sink) {}

  void add(const BlockRef& block) {
    const TensorSpec& spec = store_.table()[block.tensor];
    const std::size_t size = element_size(spec.dtype);
    old_.resize(block.span * size);
    store_.read(block.tensor, block.first_element * size, old_);
    new_ = old_;
    const DigestIndex index = digest_index_of(store_.table(), block.tensor);
    const ApplyTarget target{new_.data(), spec.dtype, nullptr, &index, &change_, nullptr};
    apply_block(block, target, Direction::kForward, scratch_);
    with_word(size, [&]<class T>() { add_tiles<T>(block, builder<T>(block)); });
  }

  CommitRecord finish() {
    end_section();
    return writer_.finish();
  }
  const StateDigest& change() const { return change_; }

 private:
  template <class T>
  SectionBuilder<T>& builder(const BlockRef& block) {
    const std::uint32_t section = block.first_tile / kTilesPerSection;
    auto& slot = std::get<std::optional<SectionBuilder<T>>>(builders_);
    if (!slot) slot.emplace(BlockRules{positions_mode_, ValueCodec::kRaw}, kBlockChanges);
    if (open_ && tensor_ == block.tensor && section_ == section) return *slot;
    end_section();
    tensor_ = block.tensor;
    section_ = section;
    open_ = true;
    end_ = [&slot] { slot->end(); };
    slot->begin(store_.table()[block.tensor], blocks_);
    return *slot;
  }

  template <class T>
  void add_tiles(const BlockRef& block, SectionBuilder<T>& out) {
    for (std::uint32_t tile = 0; tile < block.tiles; ++tile) {
      const std::uint32_t begin = tile * kTileElems;
      const std::uint32_t count = std::min(kTileElems, block.span - begin);
      const std::byte* old_bits = old_.data() + begin * sizeof(T);
      const std::byte* new_bits = new_.data() + begin * sizeof(T);
      const std::uint32_t changed = cpu::compare_tile(new_bits, old_bits, count, sizeof(T), positions_.data());
      if (changed == 0) continue;
      const auto slot = out.begin_tile(block.first_tile + tile);
      for (std::uint32_t i = 0; i < changed; ++i) {
        slot.positions[i] = slot.base + positions_[i];
        slot.coded[i] = load_word<T>(old_bits, positions_[i]);
      }
      out.end_tile(changed, old_bits);
    }
  }

  void end_section() {
    if (!open_) return;
    end_();
    writer_.append(tensor_, blocks_);
    blocks_.clear();
    open_ = false;
  }

  const CheckpointStore& store_;
  PositionMode positions_mode_;
  FrameWriter writer_;
  std::tuple<std::optional<SectionBuilder<std::uint8_t>>, std::optional<SectionBuilder<std::uint16_t>>,
             std::optional<SectionBuilder<std::uint32_t>>, std::optional<SectionBuilder<std::uint64_t>>>
      builders_;
  std::function<void()> end_;  ///< Ends the open section, whatever its word type.
  SectionBlocks blocks_;
  std::uint32_t tensor_ = 0;
  std::uint32_t section_ = 0;
  bool open_ = false;
  ApplyScratch scratch_;
  StateDigest change_;
  Bytes old_;
  Bytes new_;
  /// Larger than a tile, because compare_tile writes past the last position.
  std::vector<std::uint32_t> positions_ = std::vector<std::uint32_t>(kTileElems + 64);
};

}  // namespace

std::string undo_record_path(FileSystem& fs, const std::string& checkpoint) {
  if (fs.is_directory(checkpoint)) return checkpoint + "/" + kUndoName;
  return (fs.is_link(checkpoint) ? fs.resolved(checkpoint) : checkpoint) + ".undo.scd";
}

bool is_undo_record(const std::string& name) { return name.starts_with(kUndoName); }

std::optional<FoundUndo> foreign_undo_record(FileSystem& fs, const std::string& checkpoint) {
  const bool directory = fs.is_directory(checkpoint);
  const std::string own = fs.resolved(undo_record_path(fs, checkpoint));
  std::vector<std::string> files = {checkpoint};
  if (directory) {
    files.clear();
    for (const std::string& name : weight_files(fs, checkpoint)) files.push_back(checkpoint + "/" + name);
  }
  for (const std::string& file : files) {
    const std::string real = fs.resolved(file);
    const std::string folder = parent_directory(real);
    for (FoundUndo found : {FoundUndo{real + ".undo.scd", real}, FoundUndo{folder + "/" + kUndoName, folder}}) {
      if (!fs.exists(found.record) || fs.resolved(found.record) == own) continue;
      const std::set<std::string> torn =
          found.checkpoint == folder ? weight_files(fs, folder) : std::set<std::string>{};
      // If the index does not tell which files the record is about, the record may be about this file.
      if (torn.empty() || torn.contains(real.substr(real.rfind('/') + 1))) return found;
    }
  }
  return std::nullopt;
}

CommitRecord raw_inverse(const CheckpointStore& store, const DeltaFile& delta, const EncodeOptions& options,
                         const RecordSink& sink, const Progress& progress) {
  DeltaHeader header = inverse_header(delta, options);
  sink(pack_header(header));
  sink(pack_table(store.table(), header.delta_id));
  UndoBuilder builder(store, header, options.zstd_level, sink);
  std::uint64_t done = 0;
  for (std::size_t i = 0; i < delta.frames(); ++i) {
    const Bytes record = delta.frame(i);
    const FrameReader frame(record, delta.header(), delta.table());
    for (const BlockRef& block : frame.blocks()) {
      try {
        builder.add(block);
      } catch (const Error& error) {
        throw error.within(fmt::format("{}: {}", delta.name(), describe(frame.header(), block, delta.table())));
      }
    }
    done += record.size();
    if (progress) progress("inverting", done, delta.commit().frame_bytes);
  }
  CommitRecord commit = builder.finish();
  StateDigest predicted = delta.header().base_digest;
  predicted += builder.change();
  if (!(predicted == delta.commit().result_digest)) {
    throw Error(ErrorCode::kDigestMismatch,
                fmt::format("the delta leads to {}, but its commit record promises {}", to_hex(predicted.value),
                            to_hex(delta.commit().result_digest.value)),
                delta.name());
  }
  commit.result_digest = delta.header().base_digest;
  sink(pack_commit(commit));
  return commit;
}

void write_undo_record(FileSystem& fs, const std::string& path, const CheckpointStore& store, const DeltaFile& delta,
                       const Progress& progress) {
  AtomicFile file(fs, path);
  EncodeOptions options;
  options.frame_capacity = delta.header().frame_capacity;
  raw_inverse(
      store, delta, options, [&](Bytes&& record) { file.append(record); }, progress);
  file.commit();
}

}  // namespace sparsecast
