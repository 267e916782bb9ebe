// SPDX-License-Identifier: Apache-2.0
#include "endpoint/cut.hpp"

#include <utility>

#include "codec/frame_writer.hpp"
#include "core/word.hpp"
#include "endpoint/delta_sections.hpp"
#include "memory/encoder.hpp"

namespace sparsecast {

BoxRuns::BoxRuns(const std::vector<std::uint64_t>& shape, const Box& box) {
  std::size_t dims = shape.size();
  while (dims > 0 && box.extent[dims - 1] == shape[dims - 1]) row_ *= shape[--dims];
  length_ = row_;
  if (dims > 0) {
    --dims;
    skipped_ = box.offset[dims] * row_;
    length_ = box.extent[dims] * row_;
    row_ *= shape[dims];
  }
  for (std::size_t d = 0; d < dims; ++d) outer_.push_back({shape[d], box.offset[d], box.extent[d]});
  find_row(0);
}

std::uint64_t BoxRuns::first(std::uint64_t run) const {
  std::uint64_t element = 0;
  std::uint64_t stride = row_;
  for (std::size_t d = outer_.size(); d > 0; --d) {
    const Dimension& dimension = outer_[d - 1];
    element += (dimension.offset + run % dimension.extent) * stride;
    run /= dimension.extent;
    stride *= dimension.size;
  }
  return element + skipped_;
}

void BoxRuns::find_row(std::uint64_t element) {
  std::uint64_t row = element / row_;
  row_begin_ = row * row_;
  row_in_box_ = 0;
  std::uint64_t stride = length_;
  for (std::size_t d = outer_.size(); d > 0; --d) {
    const Dimension& dimension = outer_[d - 1];
    const std::uint64_t at = row % dimension.size;
    row /= dimension.size;
    if (at < dimension.offset || at - dimension.offset >= dimension.extent) row_in_box_.reset();
    if (row_in_box_) *row_in_box_ += (at - dimension.offset) * stride;
    stride *= dimension.extent;
  }
}

std::optional<std::uint64_t> BoxRuns::find(std::uint64_t element) {
  if (element - row_begin_ >= row_) find_row(element);  // Unsigned: also true for an element before the row.
  const std::uint64_t at = element - row_begin_;
  if (!row_in_box_ || at < skipped_ || at - skipped_ >= length_) return std::nullopt;
  return *row_in_box_ + at - skipped_;
}

namespace {

/// The changes in one region, from all sections of its tensor.
template <class T>
class RegionChanges {
 public:
  RegionChanges(std::uint32_t number, const TensorSpec& region, const std::vector<std::uint64_t>& shape, const Box& box,
                const EncodeOptions& options)
      : number_(number), region_(region), runs_(shape, box), options_(options) {}

  /// Takes those of a section's changes that the region has. Sections come in ascending order.
  void take(const SectionId& id, const SectionChanges<T>& changes) {
    const std::uint64_t begin = std::uint64_t{id.section} * kSectionElems;
    for (std::size_t i = 0; i < changes.positions.size(); ++i) {
      const std::optional<std::uint64_t> at = runs_.find(begin + changes.positions[i]);
      if (!at) continue;
      const auto section = static_cast<std::uint32_t>(*at / kSectionElems);
      if (section != section_) encode();
      section_ = section;
      changes_.add(static_cast<std::uint32_t>(*at % kSectionElems), changes.coded[i]);
    }
  }

  void write(FrameWriter& writer) {
    encode();
    for (const SectionBlocks& blocks : encoded_) writer.append(number_, blocks);
  }

 private:
  void encode() {
    if (changes_.positions.empty()) return;
    encode_changes(changes_, SectionBits(std::nullopt), region_, {number_, section_}, options_,
                   encoded_.emplace_back());
    changes_.clear();
  }

  std::uint32_t number_;
  const TensorSpec& region_;
  BoxRuns runs_;
  const EncodeOptions& options_;
  std::uint32_t section_ = 0;
  SectionChanges<T> changes_;
  std::vector<SectionBlocks> encoded_;
};

/// Place of a region among the streams.
struct RegionPlace {
  std::size_t stream = 0;
  std::uint32_t region = 0;
};

std::vector<std::vector<RegionPlace>> places_by_tensor(std::size_t tensors, const std::vector<CutStream>& streams) {
  std::vector<std::vector<RegionPlace>> places(tensors);
  for (std::size_t s = 0; s < streams.size(); ++s) {
    for (std::uint32_t r = 0; r < streams[s].regions.size(); ++r) {
      places[streams[s].regions[r].tensor].push_back({s, r});
    }
  }
  return places;
}

}  // namespace

void cut(const DeltaFile& delta, const std::vector<CutStream>& streams,
         const std::function<void(std::size_t stream, Bytes&& record)>& sink) {
  const DeltaHeader& whole = delta.header();
  if (whole.positions == PositionMode::kContext) {
    throw Error(
        ErrorCode::kUnsupported,
        "its `context` positions can be decoded only with all weights before it, and this reader holds parts of "
        "them: let the trainer publish with `packed` positions, and merge with them",
        delta.name());
  }
  EncodeOptions options;
  options.values = whole.values;
  options.positions = PositionMode::kAuto;
  std::vector<FrameWriter> writers;
  for (std::size_t s = 0; s < streams.size(); ++s) {
    const TensorTable& table = *streams[s].table;
    DeltaHeader header = make_header(table, options, {}, whole.base_version, whole.version, streams[s].base_digest);
    sink(s, pack_header(header));
    writers.emplace_back(header, 0, [&sink, s](Bytes&& record) { sink(s, std::move(record)); });
  }
  const std::vector<std::vector<RegionPlace>> places = places_by_tensor(delta.table().size(), streams);
  BlockCursor cursor(delta);
  const auto in_tensor = [&](std::uint32_t tensor) { return !cursor.done() && cursor.block().tensor == tensor; };
  while (!cursor.done()) {
    const std::uint32_t tensor = cursor.block().tensor;
    if (places[tensor].empty()) {
      while (in_tensor(tensor)) cursor.next();
      continue;
    }
    const TensorSpec& spec = delta.table()[tensor];
    with_word(element_size(spec.dtype), [&]<class T>() {
      std::vector<RegionChanges<T>> regions;
      for (const RegionPlace& place : places[tensor]) {
        const CutStream& stream = streams[place.stream];
        regions.emplace_back(place.region, (*stream.table)[place.region], spec.shape, stream.regions[place.region].box,
                             options);
      }
      DecodedBlock<T> decoded;
      SectionChanges<T> changes;
      while (in_tensor(tensor)) {
        const SectionId id = section_of(cursor.block());
        collect_section(cursor, id, SectionBits(std::nullopt), decoded, changes);
        for (RegionChanges<T>& region : regions) region.take(id, changes);
      }
      for (std::size_t i = 0; i < regions.size(); ++i) regions[i].write(writers[places[tensor][i].stream]);
    });
  }
  for (std::size_t s = 0; s < streams.size(); ++s) sink(s, pack_commit(writers[s].finish()));
}

}  // namespace sparsecast
