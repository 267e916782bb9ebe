// SPDX-License-Identifier: Apache-2.0

// Operations on deltas: compose (u->v, v->w to u->w), recode (u->v with other positions) and invert. All of them are
// streaming: only the blocks of one section of one tensor are in memory at a time, because no block crosses a section.

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "codec/frame_writer.hpp"
#include "core/word.hpp"
#include "endpoint/delta_sections.hpp"
#include "memory/encoder.hpp"

namespace sparsecast {
namespace {

template <class T>
T combine(ValueCodec values, UlpOrder order, T first, T second) {
  switch (values) {
    case ValueCodec::kRaw:
      return second;
    case ValueCodec::kXor:
      return static_cast<T>(first ^ second);
    default:
      return ulp_sum(first, second, order);
  }
}

template <class T>
void merge(ValueCodec values, UlpOrder order, const SectionChanges<T>& a, const SectionChanges<T>& b,
           SectionChanges<T>& out) {
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
      const T word = combine(values, order, a.coded[i], b.coded[j]);
      if (values == ValueCodec::kRaw || word != 0) out.add(a.positions[i], word);
      ++i;
      ++j;
    }
  }
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

/// Returns the options of a delta that has the value codec of `delta`.
EncodeOptions derived_options(EncodeOptions options, const DeltaFile& delta, bool has_base) {
  options.values = delta.header().values;
  check_encode_options(options, true);
  return with_positions_decided(options, delta.table(), has_base);
}

/// Calls write_derived for a delta that is derived from a single one: `rewrite`<T>(cursor, id, spec, blocks) takes the
/// blocks of each of its sections from the cursor.
template <class Rewrite>
CommitRecord write_rewritten(const DeltaFile& delta, const DeltaHeader& header, const StateDigest& result,
                             const EncodeOptions& options, const RecordSink& sink, const Rewrite& rewrite) {
  return write_derived(delta.table(), header, result, options, sink, [&](FrameWriter& writer) {
    BlockCursor cursor(delta);
    SectionBlocks blocks;
    while (!cursor.done()) {
      const SectionId id = section_of(cursor.block());
      const TensorSpec& spec = delta.table()[id.tensor];
      blocks.clear();
      with_word(element_size(spec.dtype), [&]<class T>() { rewrite.template operator()<T>(cursor, id, spec, blocks); });
      writer.append(id.tensor, blocks);
    }
  });
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

/// Returns the base's tensors when one of the deltas or the result has positions that depend on them. Throws
/// Error{kUsage} when they are missing, and Error{kTableMismatch} when they do not fit the table.
std::optional<TensorReader> base_for(const DeltaFile& first, const DeltaFile& second, const EncodeOptions& options,
                                     const std::optional<TensorReader>& base) {
  const bool needed = is_context(first) || is_context(second) || options.positions == PositionMode::kContext;
  if (!needed) return std::nullopt;
  if (!base) {
    throw Error(
        ErrorCode::kUsage,
        fmt::format("the places of `context` deltas are known only with the weights before them: it needs those of "
                    "{}",
                    describe_base(first.header())),
        first.name());
  }
  return base;
}

void require_base_of(const TensorReader& base, const TensorTable& table) {
  if (base.size() != table.size()) throw Error(ErrorCode::kTableMismatch, "the base has another tensor table");
  for (std::size_t t = 0; t < table.size(); ++t) {
    if (base.bytes(t) != table[t].bytes()) {
      throw Error(ErrorCode::kTableMismatch, "the base has another size", fmt::format("tensor '{}'", table[t].name));
    }
  }
}

/// Requires that `since` starts where `delta` does and can be inverted without a base.
void require_way_back(const DeltaFile& delta, const DeltaFile& since) {
  if (since.header().base_digest != delta.header().base_digest || since.header().stream != delta.header().stream) {
    throw Error(ErrorCode::kWrongBase, fmt::format("it does not start from {}", describe_base(delta.header())),
                since.name());
  }
  if (is_context(since) || since.header().values == ValueCodec::kRaw) {
    throw Error(ErrorCode::kUsage, "a raw or context delta cannot be taken back by itself", since.name());
  }
}

}  // namespace

CommitRecord compose(const DeltaFile& first, const DeltaFile& second, const EncodeOptions& options,
                     const RecordSink& sink, const std::optional<TensorReader>& given_base) {
  require_composable(first, second);
  const TensorTable& table = first.table();
  const DeltaFile& with_values = first.frames() > 0 ? first : second;
  const EncodeOptions effective = derived_options(options, with_values, given_base.has_value());
  const std::optional<TensorReader> base = base_for(first, second, effective, given_base);
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
        collect_section(a, id, bits, decoded, from_a);
        bits.advance(from_a, effective.values);
        collect_section(b, id, bits, decoded, from_b);
        merge(effective.values, ulp_order(spec.dtype), from_a, from_b, merged);
        bits.load<T>(id, spec);
        blocks.clear();
        encode_changes(merged, bits, spec, id, effective, blocks);
      });
      writer.append(id.tensor, blocks);
    }
  });
}

CommitRecord recode(const DeltaFile& delta, const EncodeOptions& options, const RecordSink& sink,
                    const std::optional<TensorReader>& given_base, const DeltaFile* since) {
  const TensorTable& table = delta.table();
  const EncodeOptions effective = derived_options(options, delta, given_base.has_value());
  const std::optional<TensorReader> base = base_for(delta, delta, effective, given_base);
  if (base) require_base_of(*base, table);
  if (since != nullptr) require_way_back(delta, *since);
  const DeltaHeader header = make_header(table, effective, delta.header().stream, delta.header().base_version,
                                         delta.header().version, delta.header().base_digest);
  std::optional<BlockCursor> back;
  if (base && since != nullptr) back.emplace(*since);
  SectionBits bits(base);
  return write_rewritten(
      delta, header, delta.commit().result_digest, effective, sink,
      [&]<class T>(BlockCursor& cursor, const SectionId& id, const TensorSpec& spec, SectionBlocks& blocks) {
        DecodedBlock<T> decoded;
        SectionChanges<T> changes;
        bits.load<T>(id, spec);
        if (back) {
          while (!back->done() && section_of(back->block()) < id) back->next();
          collect_section(*back, id, SectionBits(std::nullopt), decoded, changes);
          bits.advance(changes, since->header().values, true);
        }
        collect_section(cursor, id, bits, decoded, changes);
        encode_changes(changes, bits, spec, id, effective, blocks);
      });
}

CommitRecord invert(const DeltaFile& delta, const EncodeOptions& options, const RecordSink& sink,
                    const std::optional<TensorReader>& given_base) {
  const TensorTable& table = delta.table();
  const EncodeOptions effective = derived_options(options, delta, given_base.has_value());
  const bool raw = effective.values == ValueCodec::kRaw;
  if (raw && !given_base) {
    throw Error(ErrorCode::kUsage, "a raw delta says only the new bits; inverting it needs the base", delta.name());
  }
  const std::optional<TensorReader> base = raw ? given_base : base_for(delta, delta, effective, given_base);
  if (base) require_base_of(*base, table);
  const DeltaHeader header = make_header(table, effective, delta.header().stream, delta.header().version,
                                         delta.header().base_version, delta.commit().result_digest);
  SectionBits bits(base);
  return write_rewritten(
      delta, header, delta.header().base_digest, effective, sink,
      [&]<class T>(BlockCursor& cursor, const SectionId& id, const TensorSpec& spec, SectionBlocks& blocks) {
        DecodedBlock<T> decoded;
        SectionChanges<T> changes;
        bits.load<T>(id, spec);
        collect_section(cursor, id, bits, decoded, changes);
        SectionChanges<T> inverse = changes;
        for (std::size_t i = 0; i < changes.coded.size(); ++i) {
          T& word = inverse.coded[i];
          if (raw) {
            word = bits.template word<T>(changes.positions[i]);
          } else if (effective.values == ValueCodec::kUlp) {
            word = ulp_negative(word, ulp_order(spec.dtype));
          }
        }
        bits.advance(changes, effective.values);
        encode_changes(inverse, bits, spec, id, effective, blocks);
      });
}

}  // namespace sparsecast
