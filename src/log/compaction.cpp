// SPDX-License-Identifier: Apache-2.0

// Merged deltas: aligned spans, each made of the spans of the next smaller size.
//
//     span 4:   0-4 4-8 8-12 12-16 ...   of single deltas
//     span 16:  0-16 ...                 of the four of span 4
//
// The same inputs make the same bytes, so that work that is lost or done twice leaves the same objects.

#include <fmt/format.h>

#include <map>
#include <memory>

#include "log/log_keys.hpp"
#include "log/log_writer_state.hpp"
#include "log/records.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

constexpr const char* kScratchPrefix = "sparsecast-merge.";
constexpr std::chrono::hours kScratchAge{1};
constexpr int kMergedZstdLevel = 3;  ///< Level used when the deltas that are merged were compressed.

/// A temporary file, removed with the object.
class ScratchFile {
 public:
  ScratchFile(FileSystem& fs, std::string path) : fs_(fs), path_(std::move(path)) {}
  ~ScratchFile() {
    try {
      if (fs_.exists(path_)) fs_.remove(path_);
    } catch (...) {
      // The next compaction that finds it old enough tries again.
    }
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  const std::string& path() const noexcept { return path_; }

 private:
  FileSystem& fs_;
  std::string path_;
};

/// Removes the scratch files of compactions that crashed.
void sweep(FileSystem& fs, const std::string& scratch) {
  const auto now = fs.wall_now();
  for (const std::string& name : fs.list(scratch)) {
    if (!name.starts_with(kScratchPrefix)) continue;
    const std::string path = scratch + "/" + name;
    try {
      if (now - fs.modified(path) > kScratchAge) fs.remove(path);
    } catch (const Error&) {
      if (fs.exists(path)) throw;  // Else its owner has removed it.
    }
  }
}

bool is_compressed(const DeltaFile& delta) {
  return delta.frames() > 0 && parse_frame_header(delta.frame(0)).compressed;
}

bool is_context(const DeltaFile& delta) { return delta.header().positions == PositionMode::kContext; }

/// Makes one merged delta out of a chain, two at a time.
class Merger {
 public:
  Merger(LogReader& reader, FileSystem& fs, std::string prefix, int threads)
      : reader_(reader), fs_(fs), prefix_(std::move(prefix)), threads_(threads) {}

  /// Merges the deltas of the chain to a file. Returns null when two of them have different value codecs, or one has
  /// `context` positions: these are known only with the weights before it, which are not kept.
  std::unique_ptr<ScratchFile> merge(const std::vector<DeltaRef>& chain) {
    std::unique_ptr<ScratchFile> merged = fetch(chain.front());
    for (std::size_t i = 1; i < chain.size(); ++i) {
      const std::unique_ptr<ScratchFile> next = fetch(chain[i]);
      const DeltaFile first = DeltaFile::open(fs_, merged->path());
      const DeltaFile second = DeltaFile::open(fs_, next->path());
      if (first.header().values != second.header().values && first.frames() > 0 && second.frames() > 0) return nullptr;
      if (is_context(first) || is_context(second)) return nullptr;
      compressed_ = compressed_ || is_compressed(first) || is_compressed(second);
      std::unique_ptr<ScratchFile> both = join(first, second, i + 1 == chain.size());
      merged = std::move(both);
    }
    return merged;
  }

 private:
  std::unique_ptr<ScratchFile> make_file() {
    return std::make_unique<ScratchFile>(fs_, fmt::format("{}.{}.scd", prefix_, count_++));
  }
  std::unique_ptr<ScratchFile> fetch(const DeltaRef& ref) {
    auto file = make_file();
    reader_.fetch_delta(ref, fs_, file->path());
    return file;
  }
  std::unique_ptr<ScratchFile> join(const DeltaFile& first, const DeltaFile& second, bool last) {
    EncodeOptions options;
    options.positions = first.header().positions;
    options.frame_capacity = first.header().frame_capacity;
    options.zstd_level = last && compressed_ ? kMergedZstdLevel : 0;
    options.threads = threads_;
    auto output = make_file();
    const std::unique_ptr<File> file = fs_.open(output->path(), OpenMode::kCreate);
    std::uint64_t at = 0;
    compose(first, second, options, [&](Bytes&& record) {
      file->write_at(at, record);
      at += record.size();
    });
    return output;
  }

  LogReader& reader_;
  FileSystem& fs_;
  std::string prefix_;
  int threads_;
  std::uint64_t count_ = 0;
  bool compressed_ = false;
};

/// Returns how many versions back merged deltas are made: as many as the catalog can list with room to spare.
std::uint64_t reach_of(const std::vector<std::uint32_t>& spans) {
  double entries = 0;  // A version.
  for (const std::uint32_t span : spans) entries += 1.0 / span;
  return static_cast<std::uint64_t>(0.75 * static_cast<double>(kMaxCatalogEntries) / entries);
}

}  // namespace

/// Returns the chain of deltas of a span, or nothing when a part of it is missing.
std::vector<DeltaRef> LogWriter::State::parts_of(std::uint64_t from, std::uint64_t to, std::uint32_t step,
                                                 const MergedDeltas& merged) {
  std::vector<DeltaRef> parts;
  for (std::uint64_t at = from; at < to; at += step) {
    if (step == 1) {
      const LogCommit commit = existing_commit(at + 1);
      parts.push_back({at, at + 1, commit.delta, commit.delta_bytes});
      continue;
    }
    const auto part = merged.find({at, at + step});
    if (part == merged.end()) return {};
    parts.push_back(part->second);
  }
  return parts;
}

/// Composes the deltas of a span and uploads the result. Returns nullopt when it cannot be done.
std::optional<DeltaRef> LogWriter::State::merge_span(const std::vector<DeltaRef>& parts, FileSystem& fs,
                                                     const std::string& scratch) {
  Merger merger(reader, fs, fmt::format("{}/{}{}", scratch, kScratchPrefix, to_hex(publisher)), options.threads);
  std::unique_ptr<ScratchFile> file;
  try {
    file = merger.merge(parts);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kGone) return std::nullopt;  // Retention was faster.
    throw;
  }
  if (!file) return std::nullopt;
  const DeltaFile delta = DeltaFile::open(fs, file->path());
  DeltaRef ref{parts.front().from, parts.back().to, {}, delta.bytes()};
  const std::string span = fmt::format("merged delta {} to {}", ref.from, ref.to);
  if (!(delta.header().base_digest == existing_commit(ref.from).digest) ||
      !(delta.commit().result_digest == existing_commit(ref.to).digest)) {
    throw Error(ErrorCode::kMixed, "its digests are not those of the commits at its ends", span);
  }
  const DeltaSource source(delta);
  ref.hash = source.hash();
  const std::unique_ptr<ObjectUpload> upload = store().upload(delta_key(ref), ref.bytes);
  source.for_each([&](ConstBytes piece) { upload->append(piece); });
  upload->commit();
  return ref;
}

CompactReport LogWriter::compact(FileSystem& fs, const std::string& scratch, std::uint64_t limit) {
  State& state = *state_;
  CompactReport report;
  if (state.options.merge_spans.empty()) return report;
  sweep(fs, scratch);
  const LogCommit newest = state.current_head();
  state.require_trusted_key(newest);
  const std::uint64_t reach = reach_of(state.options.merge_spans);
  const std::uint64_t lowest = std::max(state.reader.floor(), newest.version - std::min(newest.version, reach));
  State::MergedDeltas merged;
  for (const DeltaRef& ref : state.catalog_or_rebuilt().merged) merged[{ref.from, ref.to}] = ref;
  // Another writer's update of the catalog may have dropped deltas that this writer made, and gc then removed them.
  std::erase_if(state.made, [&](const auto& made) {
    const DeltaRef& ref = made.second;
    return ref.from < lowest || (!merged.contains(made.first) && state.store().size(delta_key(ref)) != ref.bytes);
  });
  merged.insert(state.made.begin(), state.made.end());
  std::uint32_t step = 1;
  for (const std::uint32_t span : state.options.merge_spans) {
    for (std::uint64_t to = (lowest / span + 1) * span; to <= newest.version; to += span) {
      if (limit != 0 && report.merged == limit) return report;
      const std::pair place(to - span, to);
      if (place.first < lowest || merged.contains(place) || state.uncomposable.contains(place)) continue;
      const std::vector<DeltaRef> parts = state.parts_of(to - span, to, step, merged);
      const std::optional<DeltaRef> made = parts.empty() ? std::nullopt : state.merge_span(parts, fs, scratch);
      if (!made) {
        state.uncomposable.insert(place);
        continue;
      }
      merged[place] = state.made[place] = *made;
      state.update_catalog([&](LogCatalog& catalog) {
        for (const auto& [span_made, ref] : state.made) catalog.merged.push_back(ref);
      });
      ++report.merged;
      report.bytes += made->bytes;
    }
    step = span;
  }
  return report;
}

}  // namespace sparsecast
