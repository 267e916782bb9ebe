// Anchors: whole checkpoints in the log, so that nobody has to replay it from its beginning.
//
//     verify digest -> files, each durable -> record -> catalog
//
// The directory is named after the record, and the record names the files by hash: a crash leaves files without a
// record, which the same call goes on from, or gc removes.

#include <fmt/format.h>

#include <map>

#include "checkpoint/table_difference.hpp"
#include "log/anchor_files.hpp"
#include "log/log_keys.hpp"
#include "log/log_writer_state.hpp"
#include "log/records.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

void upload_file(ObjectStore& store, const std::string& directory, const LogAnchor::FileEntry& entry,
                 const AnchorFiles& files) {
  const std::string key = directory + "/" + entry.name;
  if (store.size(key) == entry.bytes) return;  // Whole: an upload before was cut short after it.
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
  State& state = *state_;
  state.require_trusted_key(state.current_head());
  const LogCommit commit = state.existing_commit(version);
  const CheckpointStore source(fs, CheckpointLayout::of(Checkpoint::open(fs, checkpoint)), OpenMode::kRead);
  if (!(source.table().hash() == commit.table_hash)) {
    throw Error(ErrorCode::kTableMismatch, "the checkpoint has other tensors than the log", checkpoint);
  }
  const AnchorFiles files(source, state.options.anchor_file_bytes);
  const AnchorFiles::Proof proof = files.verify(state.options.threads);
  if (!(proof.digest == commit.digest)) {
    throw Error(ErrorCode::kDigestMismatch,
                fmt::format("the checkpoint has digest {}, and version {} has {}", to_hex(proof.digest.value), version,
                            to_hex(commit.digest.value)),
                checkpoint);
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
    // Once more round: what was there at first may be removed as somebody's leftovers before the record says whose.
    for (int round = 0; round < 2; ++round) {
      for (const LogAnchor::FileEntry& entry : anchor.files) upload_file(store, anchor_directory(ref), entry, files);
    }
    store.put_if_absent(anchor_record_key(ref), record);
  }
  state.update_catalog([&](LogCatalog& catalog) { catalog.anchors.push_back(ref); });
  return ref;
}

/// What a joiner would need to replay from `from` to `to`: the cheapest path over the deltas that there are.
double LogWriter::State::replay_seconds(const LogCatalog& catalog, std::uint64_t from, std::uint64_t to) {
  const AnchorRule& rule = options.anchor_rule;
  const auto cost = [&](std::uint64_t bytes) {
    return static_cast<double>(bytes) / rule.bytes_per_second + rule.seconds_per_delta;
  };
  std::map<std::uint64_t, double> single;
  for (const DeltaRef& ref : catalog.deltas) single[ref.to] = cost(ref.bytes);
  std::multimap<std::uint64_t, const DeltaRef*> merged;
  for (const DeltaRef& ref : catalog.merged) merged.emplace(ref.to, &ref);
  std::vector<double> seconds(to - from + 1, 0.0);  // By version; at most max_versions of them.
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
  if (last == nullptr) return true;  // Nobody can join yet.
  const std::uint64_t distance = newest - last->version;
  if (distance < rule.min_versions) return false;
  if (distance >= rule.max_versions) return true;
  return state.replay_seconds(catalog, last->version, newest) >
         static_cast<double>(last->bytes) / rule.bytes_per_second;
}

}  // namespace sparsecast
