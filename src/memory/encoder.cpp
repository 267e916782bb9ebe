// SPDX-License-Identifier: Apache-2.0

// Detect and encode: tiles -> blocks -> frames. Sections are independent tasks; the frame writer takes their blocks
// in order, so that the bytes do not depend on the number of threads.

#include "memory/encoder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "codec/frame_writer.hpp"
#include "core/parallel.hpp"
#include "core/tensor_view.hpp"
#include "core/trace.hpp"
#include "core/word.hpp"
#include "memory/tile_coding.hpp"

namespace sparsecast {
namespace {

struct Task {
  std::uint32_t tensor = 0;
  std::uint64_t first = 0;     ///< First element; a multiple of kSectionElems.
  std::uint64_t elements = 0;  ///< Number of elements, at most kSectionElems.
};

/// Buffers of one encoding thread, which it keeps from section to section.
struct Worker {
  std::unique_ptr<TileWorkspace> workspace = std::make_unique_for_overwrite<TileWorkspace>();
  std::optional<SectionBuilder<std::uint8_t>> builder8;
  std::optional<SectionBuilder<std::uint16_t>> builder16;
  std::optional<SectionBuilder<std::uint32_t>> builder32;
  std::optional<SectionBuilder<std::uint64_t>> builder64;
  Bytes gathered;

  template <class T>
  SectionBuilder<T>& builder(const EncodeOptions& options) {
    auto& slot = [this]() -> std::optional<SectionBuilder<T>>& {
      if constexpr (sizeof(T) == 1) return builder8;
      if constexpr (sizeof(T) == 2) return builder16;
      if constexpr (sizeof(T) == 4) return builder32;
      if constexpr (sizeof(T) == 8) return builder64;
    }();
    if (!slot) slot.emplace(rules_of(options), options.block_changes);
    return *slot;
  }
};

struct Job {
  const TensorTable& table;
  TileDetector& detector;
  const EncodeOptions& options;
  bool refresh;
  bool digest;
  std::uint32_t part;  ///< Elements of one detect() call.
};

/// Passes to the builder the old bits of a part of a tile that starts at element `first`. Must run before `code`, which
/// may refresh them.
template <class T>
void add_old_bits(const TileView& view, std::uint64_t first, std::uint32_t count, Worker& worker,
                  SectionBuilder<T>& builder) {
  const std::byte* old = view.old;
  if (view.old_view != nullptr) {
    worker.gathered.resize(kTileElems * sizeof(T));
    gather_elements<T>(view.old, *view.old_view, first, count, worker.gathered.data());
    old = worker.gathered.data();
  }
  builder.add_old_bits(old, count);
}

/// Detects and codes one tile of `count` elements, part by part while each is in the nearest cache.
template <class T>
void encode_tile(const Job& job, const Task& task, TileContext tile, std::uint32_t count, Worker& worker,
                 CodeChanges<T> code, SectionBuilder<T>& builder, DigestChanges<T>& digest) {
  const std::uint64_t first = tile.first;
  TileWorkspace& workspace = *worker.workspace;
  const auto slot = builder.begin_tile(static_cast<std::uint32_t>(first / kTileElems));
  const std::byte* current = nullptr;
  std::uint32_t changed = 0;
  bool has_bitmap = true;
  TileView view;
  for (std::uint32_t at = 0; at < count; at += job.part) {
    tile.first = first + at;
    tile.base = slot.base + at;
    const std::uint32_t part = std::min(job.part, count - at);
    view = job.detector.detect(task.tensor, tile.first, part, workspace);
    if (at == 0) current = view.current;
    if (builder.needs_old_bits()) add_old_bits<T>(view, tile.first, part, worker, builder);
    has_bitmap = code(view, tile, part, workspace.positions, slot.positions + changed, slot.coded + changed,
                      slot.bitmap + at / 8, digest) &&
                 has_bitmap;
    changed += view.changed;
  }
  if (view.current_view != nullptr) {
    current = nullptr;
    if (builder.needs_current(changed)) {
      gather_elements<T>(view.current, *view.current_view, first, count, workspace.kept);
      current = workspace.kept;
    }
  }
  builder.end_tile(changed, current, has_bitmap);
}

template <class T>
void encode_section(const Job& job, const Task& task, Worker& worker, SectionBlocks& out) {
  const TensorSpec& spec = job.table[task.tensor];
  const DigestIndex index = digest_index_of(job.table, task.tensor);
  TileContext tile{0, 0, &index, ulp_order(spec.dtype)};
  const CodeChanges<T> code = select_coder<T>(job.options.values, job.refresh, job.digest);
  SectionBuilder<T>& builder = worker.builder<T>(job.options);
  DigestChanges<T> digest(index.key);
  // Room for a section that goes dense: growing by halves would hold it twice. What is not written takes no memory.
  out.payload.reserve(task.elements * sizeof(T) + task.elements / kTileElems * kBlockEntryBytes + kBlockEntryBytes);
  builder.begin(spec, out);
  for (std::uint64_t offset = 0; offset < task.elements; offset += kTileElems) {
    tile.first = task.first + offset;
    const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(kTileElems, task.elements - offset));
    encode_tile(job, task, tile, count, worker, code, builder, digest);
  }
  builder.end();
  const DigestSum sum = digest.take();
  out.digest_change = StateDigest{{sum.lo, sum.hi}};
}

/// Encodes the sections of `tasks` on `threads` threads.
void encode_sections(const Job& job, std::span<const Task> tasks, int threads, std::vector<Worker>& workers,
                     std::vector<SectionBlocks>& results) {
  std::uint64_t bytes = 0;
  for (const Task& task : tasks) bytes += task.elements * element_size(job.table[task.tensor].dtype);
  const TraceRange<"encode.sections"> range({.bytes = bytes});
  parallel_for(threads, tasks.size(), [&](std::size_t worker, std::size_t i) {
    const Task& task = tasks[i];
    results[i].clear();
    with_word(element_size(job.table[task.tensor].dtype),
              [&]<class T>() { encode_section<T>(job, task, workers[worker], results[i]); });
  });
}

/// Returns the number of sections to encode between two turns of the frame writer: many, so that threads rarely wait
/// for one another, but bounded in bytes, because a section that went dense is as large as its elements.
std::size_t batch_of(const TensorTable& table, std::size_t threads) {
  constexpr std::size_t kBatchBytes = std::size_t{128} << 20;
  std::size_t widest = 1;
  for (const TensorSpec& spec : table) widest = std::max(widest, element_size(spec.dtype));
  return std::clamp(kBatchBytes / (kSectionElems * widest), threads, 8 * threads);
}

std::vector<Task> list_tasks(const TensorTable& table) {
  std::vector<Task> tasks;
  for (std::uint32_t t = 0; t < table.size(); ++t) {
    const std::uint64_t elements = table[t].elements();
    for (std::uint64_t first = 0; first < elements; first += kSectionElems) {
      tasks.push_back({t, first, std::min<std::uint64_t>(kSectionElems, elements - first)});
    }
  }
  return tasks;
}

}  // namespace

void check_encode_options(const EncodeOptions& options, bool knows_old) {
  if (options.frame_capacity < kMinFrameCapacity || options.frame_capacity > kMaxFrameCapacity) {
    throw Error(ErrorCode::kUsage, fmt::format("frame capacity {} is not between {} and {}", options.frame_capacity,
                                               kMinFrameCapacity, kMaxFrameCapacity));
  }
  if (options.zstd_level < 0 || options.zstd_level > 19) throw Error(ErrorCode::kUsage, "zstd level is not 0 to 19");
  if (options.threads < 0) throw Error(ErrorCode::kUsage, "a negative number of threads");
  if (options.block_changes != kBlockChanges && options.block_changes != kLargeBlockChanges) {
    throw Error(ErrorCode::kUsage, fmt::format("blocks of {} changes: they have {} or {}", options.block_changes,
                                               kBlockChanges, kLargeBlockChanges));
  }
  if (!knows_old && options.values != ValueCodec::kRaw) {
    throw Error(ErrorCode::kUsage,
                fmt::format("the detector does not know the old bits that '{}' values need; use 'raw'",
                            to_string(options.values)));
  }
  if (options.positions == PositionMode::kContext && options.values != ValueCodec::kUlp) {
    throw Error(ErrorCode::kUsage,
                fmt::format("'context' positions need 'ulp' values, not '{}'", to_string(options.values)));
  }
}

EncodeOptions with_positions_decided(EncodeOptions options, const TensorTable& table, bool all_old) {
  const Objective objective = options.objective.value_or(Objective::speed());
  if (!(objective.link_bytes_per_second >= 0)) throw Error(ErrorCode::kUsage, "an objective's link rate is below 0");
  const bool floating =
      std::any_of(table.begin(), table.end(), [](const TensorSpec& spec) { return is_floating(spec.dtype); });
  if (options.positions == PositionMode::kAuto && options.values == ValueCodec::kUlp && all_old && floating &&
      objective.link_bytes_per_second < kContextLinkBytesPerSecond) {
    options.positions = PositionMode::kContext;
  }
  return options;
}

namespace {

/// Calls take(task, blocks, next) for each section in order; `next` is the tensor of the section after it, or the
/// number of tensors after the last.
template <class TakeSection>
void encode_sections_in_order(const JoinedTables& tables, TileDetector& detector, const EncodeOptions& options,
                              bool refresh, bool digest, const TakeSection& take) {
  const TensorTable& table = tables.all();
  const std::vector<Task> tasks = list_tasks(table);
  const auto threads = static_cast<std::size_t>(resolve_threads(options.threads));
  // Small tables are not worth a thread each.
  const bool parallel = threads > 1 && table.elements() > kSectionElems / 4;
  const std::size_t batch = parallel ? batch_of(table, threads) : 1;
  std::vector<Worker> workers(parallel ? threads : 1);
  std::vector<SectionBlocks> results(batch);
  const Job job{table, detector, options, refresh, digest && detector.knows_old(), detector.part()};
  for (std::size_t begin = 0; begin < tasks.size(); begin += batch) {
    const std::size_t count = std::min(batch, tasks.size() - begin);
    encode_sections(job, std::span(tasks).subspan(begin, count), parallel ? static_cast<int>(threads) : 1, workers,
                    results);
    const TraceRange<"encode.frames"> frames;
    for (std::size_t i = begin; i < begin + count; ++i) {
      take(tasks[i], results[i - begin], i + 1 < tasks.size() ? tasks[i + 1].tensor : table.size());
    }
  }
  detector.finish();
}

}  // namespace

void encode_streams(const JoinedTables& tables, TileDetector& detector, std::span<const DeltaHeader> headers,
                    const EncodeOptions& options, bool refresh, const EncodedStreamSink& sink) {
  const std::uint64_t version = headers.empty() ? 0 : headers.front().version;
  const TraceRange<"encode"> range({.version = version, .bytes = tables.all().bytes()});
  std::uint64_t frame_bytes = 0;
  std::uint64_t changed = 0;
  std::size_t stream = 0;
  EncodedFrames encoded;
  std::optional<FrameWriter> writer;
  const auto begin_stream = [&] {
    if (stream == tables.streams()) return;
    writer.emplace(headers[stream], options.zstd_level,
                   [&encoded](Bytes&& record) { encoded.frames.push_back(std::move(record)); });
  };
  const auto end_streams_before = [&](std::size_t tensor) {
    while (stream < tables.streams() && tables.first(stream + 1) <= tensor) {
      encoded.commit = writer->finish();
      frame_bytes += encoded.commit.frame_bytes;
      changed += encoded.commit.changed;
      sink(stream++, std::exchange(encoded, {}));
      begin_stream();
    }
  };
  begin_stream();
  encode_sections_in_order(tables, detector, options, refresh, true,
                           [&](const Task& task, const SectionBlocks& section, std::size_t next) {
                             end_streams_before(task.tensor);  // Streams without elements.
                             writer->append(static_cast<std::uint32_t>(task.tensor - tables.first(stream)), section);
                             encoded.digest_change += section.digest_change;
                             end_streams_before(next);
                           });
  end_streams_before(tables.all().size());
  range.mark({.version = version,
              .bytes = frame_bytes,
              .changed = changed,
              .density = trace_density(changed, tables.all().elements())});
}

EncodedFrames encode_frames(const TensorTable& table, TileDetector& detector, const DeltaHeader& header,
                            const EncodeOptions& options, bool refresh, bool digest, const RecordSink& sink,
                            const std::function<void(std::uint64_t)>& progress) {
  const TraceRange<"encode"> range({.version = header.version, .bytes = table.bytes()});
  FrameWriter writer(header, options.zstd_level, sink);
  EncodedFrames encoded;
  std::uint64_t done = 0;
  encode_sections_in_order(table, detector, options, refresh, digest,
                           [&](const Task& task, const SectionBlocks& section, std::size_t) {
                             writer.append(task.tensor, section);
                             encoded.digest_change += section.digest_change;
                             done += task.elements;
                             if (progress) progress(done);
                           });
  encoded.commit = writer.finish();
  range.mark({.version = header.version,
              .bytes = encoded.commit.frame_bytes,
              .changed = encoded.commit.changed,
              .density = trace_density(encoded.commit.changed, table.elements())});
  return encoded;
}

StreamId resolve_stream(const StreamId& stream, const TensorTable& table) {
  return stream == StreamId{} ? table.hash() : stream;
}

DeltaHeader make_header(const TensorTable& table, const EncodeOptions& options, const StreamId& stream,
                        std::uint64_t base_version, std::uint64_t version, const StateDigest& base_digest) {
  DeltaHeader header;
  header.stream = resolve_stream(stream, table);
  header.version = version;
  header.base_version = base_version;
  header.table_hash = table.hash();
  header.base_digest = base_digest;
  header.elements = table.elements();
  header.tensors = static_cast<std::uint32_t>(table.size());
  header.frame_capacity = options.frame_capacity;
  header.positions = options.positions;
  header.values = options.values;
  return header;
}

CommitRecord encode_delta(const TensorTable& table, TileDetector& detector, DeltaHeader header,
                          const EncodeOptions& asked, bool with_table, const RecordSink& sink,
                          const std::function<void(std::uint64_t)>& progress) {
  check_encode_options(asked, detector.knows_old());
  const EncodeOptions options = with_positions_decided(asked, table, detector.has_all_old());
  const DeltaHeader filled =
      make_header(table, options, header.stream, header.base_version, header.version, header.base_digest);
  header = filled;
  sink(pack_header(header));
  if (with_table) sink(pack_table(table, header.delta_id));
  EncodedFrames encoded =
      encode_frames(table, detector, header, options, !detector.snapshot().empty(), true, sink, progress);
  if (detector.knows_old()) {
    encoded.commit.result_digest = header.base_digest;
    encoded.commit.result_digest += encoded.digest_change;
  } else {
    std::vector<TensorRef> current;
    for (std::size_t t = 0; t < table.size(); ++t) current.push_back(detector.current(t));
    encoded.commit.result_digest = sum(digest_tensors(table, current, options.threads));
  }
  sink(pack_commit(encoded.commit));
  return encoded.commit;
}

}  // namespace sparsecast
