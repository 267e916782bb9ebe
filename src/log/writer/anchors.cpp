// SPDX-License-Identifier: Apache-2.0

// Anchors: whole checkpoints in the log, so that readers need not replay it from its beginning.
//
//     verify digest -> files, each durable -> record -> catalog
//
// The directory is named after the record, and the record names the files by hash. A crash leaves files without a
// record. Repeating the call continues from there; otherwise gc removes the files.

#include <fmt/format.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint_store.hpp"
#include "checkpoint/table_difference.hpp"
#include "core/parallel.hpp"
#include "log/format/log_keys.hpp"
#include "log/format/records.hpp"
#include "log/writer/log_writer_state.hpp"
#include "sparsecast/delta_log.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

/// A checkpoint cut into the files of an anchor: plain safetensors with the tensors in the order of the table. The
/// bytes depend only on the content and `file_bytes`, not on the files of the checkpoint.
class AnchorFiles {
 public:
  /// Cuts the tensors into files of about `file_bytes` bytes. Throws Error{kUsage} if that would make too many files.
  AnchorFiles(const CheckpointStore& checkpoint, std::uint64_t file_bytes);

  struct Contents {
    std::vector<LogAnchor::FileEntry> files;  ///< The files, in the order of their names.
    StateDigest digest;
  };
  /// Reads everything once and returns names, sizes, hashes and the digest of the state. Uses `threads` threads, each
  /// with one read window of memory.
  Contents verify(int threads) const;

  using Take = std::function<void(ConstBytes window)>;
  /// Reads the bytes of a file again, in order.
  void read(const std::string& name, const Take& take) const;

 private:
  struct AnchorFile {
    std::string name;
    Bytes header;
    std::size_t first = 0;  ///< Index of the file's first tensor in the table.
    std::size_t last = 0;   ///< Index after the file's last tensor in the table.
    std::uint64_t bytes = 0;
  };
  /// Reads a file, and adds its tensors to `digest` unless that is null.
  void read_part(const AnchorFile& part, const Take& take, StateDigest* digest) const;
  void cut(std::uint64_t file_bytes);
  void make_index();

  const CheckpointStore& checkpoint_;
  std::vector<AnchorFile> parts_;
  std::string index_;  ///< Text of the index file; empty if there is only one part.
};

namespace {

void upload_file(ObjectStore& store, const std::string& directory, const LogAnchor::FileEntry& entry,
                 const AnchorFiles& files) {
  const std::string key = directory + "/" + entry.name;
  if (store.size(key) == entry.bytes) return;  // An earlier, interrupted upload has completed this file.
  const std::unique_ptr<ObjectUpload> upload = store.upload(key, entry.bytes);
  ContentHasher hasher;
  files.read(entry.name, [&](ConstBytes window) {
    hasher.append(window);
    upload->append(window);
  });
  if (hasher.finish() != entry.hash) {
    throw Error(ErrorCode::kDigestMismatch, "the checkpoint changed while it was read", store.location() + "/" + key);
  }
  upload->commit();
}

}  // namespace

AnchorRef LogWriter::write_anchor(FileSystem& fs, const std::string& checkpoint, std::uint64_t version) {
  return write_anchor(Checkpoint::open(fs, checkpoint), checkpoint, version);
}

AnchorRef LogWriter::write_anchor(const Checkpoint& checkpoint, const std::string& path, std::uint64_t version) {
  State& state = *state_;
  state.require_trusted_key(state.current_head());
  const LogCommit commit = state.existing_commit(version);
  const CheckpointStore source(checkpoint);
  if (!(source.table().hash() == commit.table_hash)) {
    throw Error(ErrorCode::kTableMismatch, "the checkpoint has other tensors than the log", path);
  }
  const AnchorFiles files(source, state.options.anchor_file_bytes);
  const AnchorFiles::Contents proof = files.verify(state.options.threads);
  if (!(proof.digest == commit.digest)) {
    throw Error(ErrorCode::kDigestMismatch,
                fmt::format("the checkpoint has digest {}, and version {} has {}", to_hex(proof.digest.value), version,
                            to_hex(commit.digest.value)),
                path);
  }
  LogAnchor anchor;
  anchor.stream = commit.stream;
  anchor.version = version;
  anchor.commit = commit.record_hash;
  anchor.table_hash = commit.table_hash;
  anchor.digest = commit.digest;
  anchor.files = proof.files;
  const Bytes record = pack(anchor, state.key());
  const AnchorRef ref{version, anchor.record_hash, anchor.bytes()};

  ObjectStore& store = state.store();
  if (!store.size(anchor_record_key(ref))) {
    // Checks all files twice: gc may remove files of an earlier attempt as leftovers while there is no record.
    for (int round = 0; round < 2; ++round) {
      for (const LogAnchor::FileEntry& entry : anchor.files) upload_file(store, anchor_directory(ref), entry, files);
    }
    store.put_if_absent(anchor_record_key(ref), record);
  }
  state.update_catalog([&](LogCatalog& catalog) { catalog.anchors.push_back(ref); });
  return ref;
}

/// Estimates the seconds that a joining reader needs to replay from `from` to `to`, by the cheapest path over the
/// deltas in the catalog.
double LogWriter::State::replay_seconds(const LogCatalog& catalog, std::uint64_t from, std::uint64_t to) {
  const AnchorRule& rule = options.anchor_rule;
  const auto cost = [&](std::uint64_t bytes) {
    return static_cast<double>(bytes) / rule.bytes_per_second + rule.seconds_per_delta;
  };
  std::map<std::uint64_t, double> single;
  for (const DeltaRef& ref : catalog.deltas) single[ref.to] = cost(ref.bytes);
  std::multimap<std::uint64_t, const DeltaRef*> merged;
  for (const DeltaRef& ref : catalog.merged) merged.emplace(ref.to, &ref);
  std::vector<double> seconds(to - from + 1, 0.0);  // Indexed by version - from; at most max_versions.
  for (std::uint64_t version = from + 1; version <= to; ++version) {
    const auto listed = single.find(version);
    double best = seconds[version - from - 1] +
                  (listed != single.end() ? listed->second : cost(existing_commit(version).delta_bytes));
    const auto [begin, end] = merged.equal_range(version);
    for (auto at = begin; at != end; ++at) {
      const DeltaRef& ref = *at->second;
      if (ref.from >= from) best = std::min(best, seconds[ref.from - from] + cost(ref.bytes));
    }
    seconds[version - from] = best;
  }
  return seconds.back();
}

bool LogWriter::anchor_due() {
  State& state = *state_;
  const AnchorRule& rule = state.options.anchor_rule;
  const std::uint64_t newest = state.current_head().version;
  const LogCatalog catalog = state.catalog_or_rebuilt();
  const AnchorRef* last = nullptr;
  for (const AnchorRef& anchor : catalog.anchors) {
    if (anchor.version <= newest) last = &anchor;
  }
  if (last == nullptr) return true;  // Without an anchor, no reader can join.
  const std::uint64_t distance = newest - last->version;
  if (distance < rule.min_versions) return false;
  if (distance >= rule.max_versions) return true;
  return state.replay_seconds(catalog, last->version, newest) >
         static_cast<double>(last->bytes) / rule.bytes_per_second;
}

namespace {

constexpr std::uint64_t kWindowBytes = std::uint64_t{4} << 20;
constexpr const char* kIndexFile = "model.safetensors.index.json";

ConstBytes bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

}  // namespace

AnchorFiles::AnchorFiles(const CheckpointStore& checkpoint, std::uint64_t file_bytes) : checkpoint_(checkpoint) {
  cut(file_bytes);
  if (parts_.size() > 1) make_index();
}

/// Cuts the tensors into files. A file takes at least one tensor, and more until the next one would make it too large.
void AnchorFiles::cut(std::uint64_t file_bytes) {
  const TensorTable& table = checkpoint_.table();
  std::uint64_t data_bytes = 0;
  parts_.emplace_back();
  for (std::size_t t = 0; t < table.size(); ++t) {
    if (parts_.back().last > parts_.back().first && table[t].bytes() > file_bytes - std::min(file_bytes, data_bytes)) {
      parts_.push_back({{}, {}, t, t, 0});
      data_bytes = 0;
    }
    data_bytes += table[t].bytes();
    parts_.back().last = t + 1;
  }
  if (parts_.size() >= kMaxAnchorFiles) {
    throw Error(ErrorCode::kUsage, fmt::format("an anchor of {} files: they have to be larger", parts_.size()));
  }
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    AnchorFile& part = parts_[i];
    part.name = parts_.size() == 1 ? std::string("model.safetensors")
                                   : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, parts_.size());
    const std::vector<TensorSpec> specs(table.begin() + static_cast<std::ptrdiff_t>(part.first),
                                        table.begin() + static_cast<std::ptrdiff_t>(part.last));
    // Loaders of the Hugging Face libraries refuse files without this entry.
    part.header = SafetensorsHeader::serialize(specs, {{"format", "pt"}});
    part.bytes = part.header.size();
    for (const TensorSpec& spec : specs) part.bytes += spec.bytes();
  }
}

void AnchorFiles::make_index() {
  nlohmann::json weight_map = nlohmann::json::object();
  for (const AnchorFile& part : parts_) {
    for (std::size_t t = part.first; t < part.last; ++t) weight_map[checkpoint_.table()[t].name] = part.name;
  }
  const nlohmann::json index = {{"metadata", {{"total_size", checkpoint_.table().bytes()}}},
                                {"weight_map", std::move(weight_map)}};
  index_ = index.dump(2) + "\n";
}

void AnchorFiles::read_part(const AnchorFile& part, const Take& take, StateDigest* digest) const {
  take(part.header);
  const TensorTable& table = checkpoint_.table();
  Bytes window;
  for (std::size_t t = part.first; t < part.last; ++t) {
    const std::uint64_t size = element_size(table[t].dtype);
    for (std::uint64_t begin = 0; begin < table[t].bytes(); begin += window.size()) {
      window.resize(std::min(kWindowBytes, table[t].bytes() - begin));
      checkpoint_.read(t, begin, window);
      take(window);
      if (digest != nullptr) *digest += digest_span(table.digest_key(t), table[t].dtype, begin / size, window);
    }
  }
}

AnchorFiles::Contents AnchorFiles::verify(int threads) const {
  Contents proof;
  proof.files.resize(parts_.size());
  std::vector<StateDigest> digests(parts_.size());
  parallel_for(threads, parts_.size(), [&](std::size_t, std::size_t i) {
    ContentHasher hasher;
    read_part(
        parts_[i], [&](ConstBytes window) { hasher.append(window); }, &digests[i]);
    proof.files[i] = {parts_[i].name, parts_[i].bytes, hasher.finish()};
  });
  proof.digest = sum(digests);
  if (!index_.empty()) proof.files.push_back({kIndexFile, index_.size(), content_hash(bytes_of(index_))});
  return proof;
}

void AnchorFiles::read(const std::string& name, const Take& take) const {
  if (name == kIndexFile) return take(bytes_of(index_));
  for (const AnchorFile& part : parts_) {
    if (part.name == name) return read_part(part, take, nullptr);
  }
  throw Error(ErrorCode::kUsage, "the anchor has no such file", name);
}

}  // namespace sparsecast
