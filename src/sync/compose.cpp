// SPDX-License-Identifier: Apache-2.0

// Group operations on deltas: compose (u->v, v->w to u->w) and invert. Both stream: blocks of one section of one tensor
// are in memory at a time, because no block crosses a section.

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "codec/block_coding.hpp"
#include "codec/codec_common.hpp"
#include "codec/frame_writer.hpp"
#include "core/word.hpp"
#include "sync/encoder.hpp"

namespace sparsecast {
namespace {

/// Iterates over the blocks of a delta file in order.
class BlockCursor {
 public:
  explicit BlockCursor(const DeltaFile& file) : file_(file) { load(); }

  bool done() const { return !frame_; }
  const BlockRef& block() const { return frame_->blocks()[index_]; }
  std::string where() const {
    return fmt::format("{}: {}", file_.name(), describe(frame_->header(), block(), file_.table()));
  }

  void next() {
    const BlockRef previous = block();
    if (++index_ == frame_->blocks().size()) {
      frame_.reset();
      file_.release_frame(next_frame_ - 1);
      load();
    }
    if (!done() && !follows(previous, block())) {
      throw Error(ErrorCode::kCorrupt, "blocks are out of order or overlap", where());
    }
  }

 private:
  void load() {
    index_ = 0;
    if (next_frame_ == file_.frames()) return;
    try {
      frame_.emplace(file_.frame(next_frame_++), file_.header(), file_.table());
    } catch (const Error& error) {
      throw error.within(file_.name());
    }
  }

  const DeltaFile& file_;
  std::size_t next_frame_ = 0;
  std::optional<FrameReader> frame_;
  std::size_t index_ = 0;
};

/// A section of one tensor; ordered as blocks are.
struct SectionId {
  std::uint32_t tensor = 0;
  std::uint32_t section = 0;
  friend auto operator<=>(const SectionId&, const SectionId&) = default;
};

SectionId section_of(const BlockRef& block) { return {block.tensor, block.first_tile / kTilesPerSection}; }

/// Changes of one section; positions relative to its first element.
template <class T>
struct SectionChanges {
  std::vector<std::uint32_t> positions;
  std::vector<T> coded;

  void clear() {
    positions.clear();
    coded.clear();
  }
  void add(std::uint32_t position, T word) {
    positions.push_back(position);
    coded.push_back(word);
  }
};

/// The bits of one section, which deltas bring from version to version; empty where no `context` block needs them.
class SectionBits {
 public:
  /// With a null `base`, stays empty.
  explicit SectionBits(const std::optional<std::span<const ConstBytes>>& base) : base_(base) {}

  template <class T>
  void load(const SectionId& id, const TensorSpec& spec) {
    if (!base_) return;
    dtype_ = spec.dtype;
    const ConstBytes tensor = (*base_)[id.tensor];
    const ConstBytes from_here = tensor.subspan(std::uint64_t{id.section} * kSectionElems * sizeof(T));
    const ConstBytes section = from_here.first(std::min<std::size_t>(from_here.size(), kSectionElems * sizeof(T)));
    bits_.assign(section.begin(), section.end());
  }
  bool known() const { return base_.has_value(); }
  OldBits from(std::uint32_t element, std::size_t element_bytes) const {
    return {bits_.data() + element * element_bytes, dtype_, nullptr};
  }
  template <class T>
  std::uint32_t elements() const {
    return static_cast<std::uint32_t>(bits_.size() / sizeof(T));
  }
  template <class T>
  void advance(const SectionChanges<T>& changes, ValueCodec values) {
    if (!known()) return;
    for (std::size_t i = 0; i < changes.positions.size(); ++i) {
      const std::uint32_t at = changes.positions[i];
      const T old_bits = load_word<T>(bits_.data(), at);
      store_word(bits_.data(), at, changed_bits(old_bits, changes.coded[i], values, is_floating(dtype_), false));
    }
  }

 private:
  std::optional<std::span<const ConstBytes>> base_;
  DType dtype_ = DType::kBF16;
  Bytes bits_;
};

/// Takes all blocks of section `id`, which are changes of `bits`, from the cursor.
template <class T>
void collect(BlockCursor& cursor, const SectionId& id, const SectionBits& bits, DecodedBlock<T>& decoded,
             SectionChanges<T>& out) {
  out.clear();
  while (!cursor.done() && section_of(cursor.block()) == id) {
    const BlockRef& block = cursor.block();
    const std::uint32_t base = (block.first_tile % kTilesPerSection) * kTileElems;
    try {
      const OldBits old = bits.known() ? bits.from(base, sizeof(T)) : OldBits{};
      decode_block(block, decoded, bits.known() ? &old : nullptr);
    } catch (const Error& error) {
      throw error.within(cursor.where());
    }
    const bool keep_zero = block.coding.values == ValueCodec::kRaw || !decoded.dense;
    for (std::uint32_t i = 0; i < decoded.count; ++i) {
      if (keep_zero || decoded.coded[i] != 0) {
        out.add(base + (decoded.dense ? i : decoded.positions[i]), decoded.coded[i]);
      }
    }
    cursor.next();
  }
}

template <class T>
T combine(ValueCodec values, T first, T second) {
  switch (values) {
    case ValueCodec::kRaw:
      return second;
    case ValueCodec::kXor:
      return static_cast<T>(first ^ second);
    default:
      return static_cast<T>(first + second);
  }
}

template <class T>
void merge(ValueCodec values, const SectionChanges<T>& a, const SectionChanges<T>& b, SectionChanges<T>& out) {
  out.clear();
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.positions.size() || j < b.positions.size()) {
    if (j == b.positions.size() || (i < a.positions.size() && a.positions[i] < b.positions[j])) {
      out.add(a.positions[i], a.coded[i]);
      ++i;
    } else if (i == a.positions.size() || b.positions[j] < a.positions[i]) {
      out.add(b.positions[j], b.coded[j]);
      ++j;
    } else {
      const T word = combine(values, a.coded[i], b.coded[j]);
      if (values == ValueCodec::kRaw || word != 0) out.add(a.positions[i], word);
      ++i;
      ++j;
    }
  }
}

/// `bits` are those before the changes.
template <class T>
void encode_changes(const SectionChanges<T>& changes, const SectionBits& bits, const TensorSpec& spec,
                    const SectionId& id, const EncodeOptions& options, SectionBlocks& out) {
  SectionBuilder<T> builder(options.positions, options.values);
  builder.begin(spec.elements(), out);
  const bool old_bits = builder.needs_old_bits(spec.dtype);
  std::size_t begin = 0;
  for (std::uint32_t tile = 0; begin < changes.positions.size(); ++tile) {
    std::size_t end = begin;
    while (end < changes.positions.size() && changes.positions[end] / kTileElems == tile) ++end;
    if (end == begin && !old_bits) continue;
    const auto slot = builder.begin_tile(id.section * kTilesPerSection + tile);
    if (old_bits) {
      const std::uint32_t first = tile * kTileElems;
      const std::uint32_t count = std::min(kTileElems, bits.elements<T>() - first);
      builder.add_old_bits(bits.from(first, sizeof(T)).window, count, spec.dtype);
    }
    for (std::size_t i = begin; i < end; ++i) {
      slot.positions[i - begin] = slot.base + changes.positions[i] % kTileElems;
      slot.coded[i - begin] = changes.coded[i];
    }
    builder.end_tile(static_cast<std::uint32_t>(end - begin), nullptr);
    begin = end;
  }
  builder.end();
}

/// Writes the records of a derived delta around the sections that `sections` appends.
template <class Sections>
CommitRecord write_derived(const TensorTable& table, DeltaHeader header, const StateDigest& result,
                           const EncodeOptions& options, const RecordSink& sink, const Sections& sections) {
  sink(pack_header(header));
  sink(pack_table(table, header.delta_id));
  FrameWriter writer(header, options.zstd_level, sink);
  sections(writer);
  CommitRecord commit = writer.finish();
  commit.result_digest = result;
  sink(pack_commit(commit));
  return commit;
}

void require_composable(const DeltaFile& first, const DeltaFile& second) {
  const DeltaHeader& a = first.header();
  const DeltaHeader& b = second.header();
  const std::string& where = second.name();
  if (a.stream != b.stream) throw Error(ErrorCode::kForeignStream, "the deltas belong to different streams", where);
  if (a.table_hash != b.table_hash) {
    throw Error(ErrorCode::kTableMismatch, "the deltas carry different tensor tables", where);
  }
  if (a.version != b.base_version) {
    throw Error(ErrorCode::kVersionGap,
                fmt::format("it starts from version {}, the one before ends at {}", b.base_version, a.version), where);
  }
  if (a.digest_mix != b.digest_mix) {
    throw Error(ErrorCode::kUsage, "its digests have another mix (format version) than those of the delta before",
                where);
  }
  if (first.commit().result_digest != b.base_digest) {
    throw Error(ErrorCode::kWrongBase, "its base digest is not the result of the delta before", where);
  }
  // A delta without frames changes nothing, whatever its codec would have been.
  if (a.values != b.values && first.frames() > 0 && second.frames() > 0) {
    throw Error(ErrorCode::kUsage,
                fmt::format("'{}' values cannot be joined with '{}'", to_string(a.values), to_string(b.values)), where);
  }
}

bool is_context(const DeltaFile& delta) { return delta.header().positions == PositionMode::kContext; }

/// The base's tensors, when one of the deltas or the result has places that only they tell; throws Error{kUsage}
/// without them, and Error{kTableMismatch} when they are not those of the table.
std::optional<std::span<const ConstBytes>> base_for(const DeltaFile& first, const DeltaFile& second,
                                                    const EncodeOptions& options,
                                                    const std::optional<std::span<const ConstBytes>>& base) {
  const bool needed = is_context(first) || is_context(second) || options.positions == PositionMode::kContext;
  if (!needed) return std::nullopt;
  if (!base) {
    throw Error(ErrorCode::kUsage,
                fmt::format("the places of `context` deltas are known only with the weights: it needs those of version "
                            "{}, its base",
                            first.header().base_version),
                first.name());
  }
  return base;
}

void require_base_of(const std::span<const ConstBytes>& base, const TensorTable& table) {
  if (base.size() != table.size()) throw Error(ErrorCode::kTableMismatch, "the base has another tensor table");
  for (std::size_t t = 0; t < table.size(); ++t) {
    if (base[t].size() != table[t].bytes()) {
      throw Error(ErrorCode::kTableMismatch, "the base has another size", fmt::format("tensor '{}'", table[t].name));
    }
  }
}

}  // namespace

CommitRecord compose(const DeltaFile& first, const DeltaFile& second, const EncodeOptions& options,
                     const RecordSink& sink, std::optional<std::span<const ConstBytes>> base) {
  require_composable(first, second);
  EncodeOptions effective = options;
  effective.values = first.frames() > 0 ? first.header().values : second.header().values;
  check_encode_options(effective, true);
  const TensorTable& table = first.table();
  base = base_for(first, second, effective, base);
  if (base) require_base_of(*base, table);
  const DeltaHeader header = make_header(table, effective, first.header().stream, first.header().base_version,
                                         second.header().version, first.header().base_digest);
  return write_derived(table, header, second.commit().result_digest, effective, sink, [&](FrameWriter& writer) {
    BlockCursor a(first);
    BlockCursor b(second);
    SectionBlocks blocks;
    SectionBits bits(base);
    while (!a.done() || !b.done()) {
      const SectionId id = a.done()   ? section_of(b.block())
                           : b.done() ? section_of(a.block())
                                      : std::min(section_of(a.block()), section_of(b.block()));
      const TensorSpec& spec = table[id.tensor];
      with_word(element_size(spec.dtype), [&]<class T>() {
        DecodedBlock<T> decoded;
        SectionChanges<T> from_a;
        SectionChanges<T> from_b;
        SectionChanges<T> merged;
        bits.load<T>(id, spec);
        collect(a, id, bits, decoded, from_a);
        bits.advance(from_a, effective.values);
        collect(b, id, bits, decoded, from_b);
        merge(effective.values, from_a, from_b, merged);
        bits.load<T>(id, spec);
        blocks.clear();
        encode_changes(merged, bits, spec, id, effective, blocks);
      });
      writer.append(id.tensor, blocks);
    }
  });
}

CommitRecord invert(const DeltaFile& delta, const EncodeOptions& options, const RecordSink& sink,
                    std::optional<std::span<const ConstBytes>> base) {
  EncodeOptions effective = options;
  effective.values = delta.header().values;
  check_encode_options(effective, true);
  const bool raw = effective.values == ValueCodec::kRaw;
  const TensorTable& table = delta.table();
  if (raw && !base) {
    throw Error(ErrorCode::kUsage, "a raw delta says only the new bits; inverting it needs the base", delta.name());
  }
  if (!raw) base = base_for(delta, delta, effective, base);
  if (base) require_base_of(*base, table);
  const DeltaHeader header = make_header(table, effective, delta.header().stream, delta.header().version,
                                         delta.header().base_version, delta.commit().result_digest);
  return write_derived(table, header, delta.header().base_digest, effective, sink, [&](FrameWriter& writer) {
    BlockCursor cursor(delta);
    SectionBlocks blocks;
    SectionBits bits(base);
    while (!cursor.done()) {
      const SectionId id = section_of(cursor.block());
      const TensorSpec& spec = table[id.tensor];
      with_word(element_size(spec.dtype), [&]<class T>() {
        DecodedBlock<T> decoded;
        SectionChanges<T> changes;
        bits.load<T>(id, spec);
        collect(cursor, id, bits, decoded, changes);
        bits.advance(changes, effective.values);
        for (std::size_t i = 0; i < changes.coded.size(); ++i) {
          T& word = changes.coded[i];
          if (raw) {
            word = load_word<T>((*base)[id.tensor].data(),
                                std::uint64_t{id.section} * kSectionElems + changes.positions[i]);
          } else if (effective.values == ValueCodec::kUlp) {
            word = static_cast<T>(T{0} - word);
          }
        }
        blocks.clear();
        encode_changes(changes, bits, spec, id, effective, blocks);
      });
      writer.append(id.tensor, blocks);
    }
  });
}

}  // namespace sparsecast
