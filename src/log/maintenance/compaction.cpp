// SPDX-License-Identifier: Apache-2.0

// Merged deltas: aligned spans, each made of the spans of the next smaller size.
//
//     span 4:   0-4 4-8 8-12 12-16 ...   of single deltas
//     span 16:  0-16 ...                 of the four of span 4
//
// Merging is deterministic: equal inputs give equal bytes, so that repeated work makes the same objects.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "log/format/log_keys.hpp"
#include "log/format/records.hpp"
#include "log/reader/plain_deltas.hpp"
#include "log/writer/log_writer_state.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

constexpr const char* kScratchPrefix = "sparsecast-merge.";
constexpr std::chrono::hours kScratchAge{1};

/// A temporary file, which the destructor removes unless it belongs to another owner.
class ScratchFile {
 public:
  enum class Owner : std::uint8_t { kThis, kOther };

  ScratchFile(FileSystem& fs, std::string path, Owner owner = Owner::kThis)
      : fs_(fs), path_(std::move(path)), owner_(owner) {}
  ~ScratchFile() {
    if (owner_ == Owner::kOther) return;
    try {
      if (fs_.exists(path_)) fs_.remove(path_);
    } catch (...) {
      // A later compaction removes the file once it is old enough (sweep()).
    }
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  const std::string& path() const noexcept { return path_; }

 private:
  FileSystem& fs_;
  std::string path_;
  Owner owner_;
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
      if (fs.exists(path)) throw;  // Otherwise its owner has removed it.
    }
  }
}

/// Makes one merged delta out of a chain, two at a time. It joins only deltas that can be decoded without the weights:
/// for `context` deltas it uses the plain copies that the mirror has kept.
class Merger {
 public:
  Merger(LogReader& reader, FileSystem& fs, std::string prefix, int threads, VersionDigest digest_of,
         std::optional<OpenMirror>& mirror)
      : reader_(reader),
        fs_(fs),
        prefix_(std::move(prefix)),
        threads_(threads),
        digest_of_(std::move(digest_of)),
        mirror_(mirror) {}

  /// Merges the deltas of the chain to a file. Returns null when two of them have different value codecs, or when one
  /// has `context` positions (without_base() then) and the mirror has kept no plain copy.
  std::unique_ptr<ScratchFile> merge(const std::vector<DeltaRef>& chain) {
    std::unique_ptr<ScratchFile> merged = plain(chain.front());
    for (std::size_t i = 1; merged != nullptr && i < chain.size(); ++i) {
      const std::unique_ptr<ScratchFile> next = plain(chain[i]);
      if (next == nullptr) return nullptr;
      merged = join(*merged, *next, i + 1 == chain.size() ? Compression::kAsFound : Compression::kNone);
    }
    return merged;
  }
  bool without_base() const noexcept { return without_base_; }
  /// Returns whether any merged delta has `context` positions in the log.
  bool context() const noexcept { return context_; }

  /// Writes a merged delta with `context` positions. To get its base, undoes from the mirror's weights the merged delta
  /// and `after`, the single deltas from its end to the mirror's version. Returns null if one of these has `context`
  /// positions and the mirror has not kept it in plain form.
  std::unique_ptr<ScratchFile> with_context(const ScratchFile& merged, const std::vector<DeltaRef>& after) {
    std::unique_ptr<ScratchFile> since;
    for (const DeltaRef& ref : after) {
      const std::unique_ptr<ScratchFile> next = plain(ref);
      if (next == nullptr) return nullptr;
      since = join(since ? *since : merged, *next, Compression::kNone);
      if (since == nullptr) return nullptr;
    }
    const DeltaFile delta = DeltaFile::open(fs_, merged.path());
    if (delta.header().values != ValueCodec::kUlp) return nullptr;
    std::optional<DeltaFile> all;
    if (since) all.emplace(DeltaFile::open(fs_, since->path()));
    EncodeOptions options = options_like(delta, Compression::kAsFound);
    options.positions = PositionMode::kContext;
    const TensorReader tensors = mirror_->checkpoint.reader();
    return write([&](const RecordSink& sink) { recode(delta, options, sink, tensors, all ? &*all : &delta); });
  }

 private:
  enum class Compression : std::uint8_t { kNone, kAsFound };

  std::unique_ptr<ScratchFile> make_file() {
    return std::make_unique<ScratchFile>(fs_, fmt::format("{}.{}.scd", prefix_, count_++));
  }
  template <class Write>
  std::unique_ptr<ScratchFile> write(const Write& records) {
    auto output = make_file();
    const std::unique_ptr<File> file = fs_.open(output->path(), OpenMode::kCreate);
    std::uint64_t at = 0;
    records([&](Bytes&& record) {
      file->write_at(at, record);
      at += record.size();
    });
    return output;
  }
  /// Returns the delta in a form that can be decoded without the weights, or null.
  std::unique_ptr<ScratchFile> plain(const DeltaRef& ref) {
    if (mirror_) {
      if (const auto kept = mirror_->plain.find(ref.from, ref.to, digest_of_)) {
        context_ = true;
        return std::make_unique<ScratchFile>(fs_, *kept, ScratchFile::Owner::kOther);
      }
    }
    auto file = make_file();
    reader_.fetch_delta(ref, fs_, file->path());
    if (!is_context(DeltaFile::open(fs_, file->path()))) return file;
    without_base_ = true;
    return nullptr;
  }
  EncodeOptions options_like(const DeltaFile& delta, Compression compression) const {
    EncodeOptions options;
    options.frame_capacity = delta.header().frame_capacity;
    options.block_changes = kLargeBlockChanges;
    options.zstd_level = compression == Compression::kAsFound && compressed_ ? kDerivedZstdLevel : 0;
    options.threads = threads_;
    return options;
  }
  std::unique_ptr<ScratchFile> join(const ScratchFile& first_file, const ScratchFile& second_file,
                                    Compression compression) {
    const DeltaFile first = DeltaFile::open(fs_, first_file.path());
    const DeltaFile second = DeltaFile::open(fs_, second_file.path());
    if (first.header().values != second.header().values && first.frames() > 0 && second.frames() > 0) return nullptr;
    compressed_ = compressed_ || is_compressed(first) || is_compressed(second);
    EncodeOptions options = options_like(first, compression);
    options.positions = first.header().positions;
    return write([&](const RecordSink& sink) { compose(first, second, options, sink); });
  }

  LogReader& reader_;
  FileSystem& fs_;
  std::string prefix_;
  int threads_;
  VersionDigest digest_of_;
  std::optional<OpenMirror>& mirror_;
  std::uint64_t count_ = 0;
  bool compressed_ = false;
  bool context_ = false;
  bool without_base_ = false;
};

/// Returns how many versions back merged deltas are made: as many as fill three quarters of the catalog.
std::uint64_t reach_of(const std::vector<std::uint32_t>& spans) {
  double entries = 0;  // Number of merged deltas per version.
  for (const std::uint32_t span : spans) entries += 1.0 / span;
  return static_cast<std::uint64_t>(0.75 * static_cast<double>(kMaxCatalogEntries) / entries);
}

}  // namespace

/// Returns the chain of deltas of a span, or an empty list if a part is missing.
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

/// Composes the deltas of a span and uploads the result. Returns nullopt if they cannot be composed.
std::optional<DeltaRef> LogWriter::State::merge_span(const std::vector<DeltaRef>& parts, FileSystem& fs,
                                                     const std::string& scratch, std::optional<OpenMirror>& mirror,
                                                     CompactReport& report) {
  Merger merger(
      reader, fs, fmt::format("{}/{}{}", scratch, kScratchPrefix, to_hex(publisher)), options.threads,
      [this](std::uint64_t version) { return existing_commit(version).digest; }, mirror);
  std::unique_ptr<ScratchFile> file;
  try {
    file = merger.merge(parts);
    if (file && merger.context() && mirror->version >= parts.back().to) {
      mirror->plain.adopt(file->path(), parts.front().from, parts.back().to);
      auto smaller = merger.with_context(*file, parts_of(parts.back().to, mirror->version, 1, {}));
      if (smaller) file = std::move(smaller);
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kGone) return std::nullopt;  // Garbage collection has removed a part meanwhile.
    throw;
  }
  if (merger.without_base() && !file) ++report.without_base;
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

CompactReport LogWriter::compact(FileSystem& fs, const std::string& scratch, std::uint64_t limit,
                                 const std::optional<MergeMirror>& mirror) {
  State& state = *state_;
  CompactReport report;
  if (state.options.merge_spans.empty()) return report;
  sweep(fs, scratch);
  std::optional<OpenMirror> open_mirror;
  if (mirror) {
    open_mirror.emplace(
        OpenMirror{Checkpoint::open(fs, mirror->checkpoint), mirror->version, PlainDeltas(fs, mirror->checkpoint)});
  }
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
      const std::optional<DeltaRef> made =
          parts.empty() ? std::nullopt : state.merge_span(parts, fs, scratch, open_mirror, report);
      if (!made) {
        // If the mirror has not reached the span's end yet, it will keep plain deltas on its way, so the span may
        // succeed later.
        if (!open_mirror || to <= open_mirror->version) state.uncomposable.insert(place);
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
  // A plain delta is needed until the span that will contain it has ended.
  const std::vector<std::uint32_t>& spans = state.options.merge_spans;
  if (open_mirror) {
    open_mirror->plain.remove_if([&](std::uint64_t from, std::uint64_t to) {
      const auto next = std::find_if(spans.begin(), spans.end(), [&](std::uint32_t span) { return span > to - from; });
      return next == spans.end() || (from / *next + 1) * *next <= mirror->version;
    });
  }
  return report;
}

}  // namespace sparsecast
