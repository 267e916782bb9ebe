// SPDX-License-Identifier: Apache-2.0
#pragma once

// A small delta log in memory, with merged deltas and anchors put in by hand, and checkpoints that follow it.

#include <algorithm>
#include <memory>
#include <string>

#include "log/format/log_keys.hpp"
#include "log/format/records.hpp"
#include "sparsecast/log_follower.hpp"
#include "support/fault_fs.hpp"
#include "support/log_scene.hpp"
#include "support/memory_store.hpp"

namespace sparsecast::test {

class FollowScene {
 public:
  explicit FollowScene(std::uint64_t seed = 1, std::uint64_t elements = 200)
      : scene_(seed, elements), store_(std::make_shared<MemoryStore>()), reader_(store_), writer_(reader_, {}) {
    writer_.create(scene_.creation());
  }

  LogScene& model() { return scene_; }
  MemoryStore& store() { return *store_; }
  std::shared_ptr<MemoryStore> shared_store() { return store_; }
  LogWriter& writer() { return writer_; }
  std::uint64_t head() const { return writer_.head().version; }
  StateDigest digest(std::uint64_t version) { return scene_.digest(version); }

  void publish_to(std::uint64_t version) {
    while (head() < version) {
      const std::uint64_t next = head() + 1;
      const Bytes bytes = scene_.delta(next - 1, next, next);
      writer_.publish(DeltaFile::over(bytes, "delta"));
    }
  }

  /// The bytes of a delta over several versions.
  Bytes merged(std::uint64_t from, std::uint64_t to) {
    return encode_file(*scene_.table(), scene_.state(from), (scene_.state(to), scene_.state(to)), {}, {from, to});
  }
  /// Stores the object and enters it.
  DeltaRef add_merged(std::uint64_t from, std::uint64_t to) { return add_merged(from, to, merged(from, to)); }
  DeltaRef add_merged(std::uint64_t from, std::uint64_t to, const Bytes& bytes) {
    const DeltaRef ref{from, to, content_hash(bytes), bytes.size()};
    store_->set(delta_key(ref), bytes);
    change_catalog([&](LogCatalog& catalog) {
      catalog.merged.push_back(ref);
      std::sort(catalog.merged.begin(), catalog.merged.end(),
                [](const DeltaRef& a, const DeltaRef& b) { return std::pair(a.to, a.from) < std::pair(b.to, b.from); });
    });
    return ref;
  }
  void add_merged_schedule(std::initializer_list<std::uint64_t> spans) {
    for (const std::uint64_t span : spans) {
      for (std::uint64_t from = 0; from + span <= head(); from += span) add_merged(from, from + span);
    }
  }

  AnchorRef add_anchor(std::uint64_t version) { return add_anchor(version, scene_.checkpoint(version)); }
  AnchorRef add_anchor(std::uint64_t version, const Bytes& checkpoint) {
    const LogCommit commit = *reader_.commit(version);
    LogAnchor anchor;
    anchor.stream = commit.stream;
    anchor.version = version;
    anchor.commit = commit.record_hash;
    anchor.table_hash = commit.table_hash;
    anchor.digest = commit.digest;
    anchor.files.push_back({"model.safetensors", checkpoint.size(), content_hash(checkpoint)});
    return add_anchor(anchor, checkpoint);
  }
  AnchorRef add_anchor(LogAnchor anchor, const Bytes& checkpoint) {
    const Bytes record = pack(anchor, nullptr);
    const AnchorRef ref{anchor.version, anchor.record_hash, anchor.bytes()};
    store_->set(anchor_directory(ref) + "/model.safetensors", checkpoint);
    store_->set(anchor_record_key(ref), record);
    change_catalog([&](LogCatalog& catalog) {
      catalog.anchors.push_back(ref);
      std::sort(catalog.anchors.begin(), catalog.anchors.end(),
                [](const AnchorRef& a, const AnchorRef& b) { return a.version < b.version; });
    });
    return ref;
  }

  template <class Change>
  void change_catalog(const Change& change) {
    LogCatalog catalog = reader_.catalog().value();
    change(catalog);
    store_->set(kCatalogKey, pack(catalog, nullptr));
  }
  void set_floor(std::uint64_t version) {
    LogFloor floor;
    floor.stream = scene_.stream();
    floor.version = version;
    store_->set(kFloorKey, pack(floor, nullptr));
  }

  /// Removes what gc would remove below that version.
  void collect(std::uint64_t version) {
    set_floor(version);
    for (const auto& [key, bytes] : store_->objects()) {
      const auto delta = ref_of_delta_key(key);
      const auto anchor = ref_of_anchor_key(key);
      if ((delta && delta->from < version) || (anchor && anchor->version < version)) store_->erase(key);
    }
  }

  /// The version that a checkpoint holds, by its bytes; nullopt when it is none of 0 to `most`.
  std::optional<std::uint64_t> version_of(FileSystem& fs, const std::string& path, std::uint64_t most) {
    const Checkpoint checkpoint = Checkpoint::open(fs, path);
    for (std::uint64_t version = 0; version <= most; ++version) {
      if (holds(checkpoint, version)) return version;
    }
    return std::nullopt;
  }
  bool holds(const Checkpoint& checkpoint, std::uint64_t version) {
    const TensorState& state = scene_.state(version);
    for (std::size_t i = 0; i < state.size(); ++i) {
      const Bytes bytes = checkpoint.tensor(i);
      if (!std::equal(bytes.begin(), bytes.end(), state[i].begin(), state[i].end())) return false;
    }
    return true;
  }

 private:
  LogScene scene_;
  std::shared_ptr<MemoryStore> store_;
  LogReader reader_;
  LogWriter writer_;
};

/// How a checkpoint follows: where, and how it is written.
struct FollowedCheckpoint {
  const char* name;
  const char* path;
  bool copy_on_write;

  bool directory() const { return !std::string(path).ends_with(".safetensors"); }
  std::string state_path() const { return std::string(path) + ".follow/state"; }
  void put(FaultFileSystem& fs, const Bytes& checkpoint) const {
    fs.put_file(directory() ? std::string(path) + "/model.safetensors" : std::string(path), checkpoint);
    if (directory()) fs.put_file(std::string(path) + "/config.json", std::string("{}"));
  }
  LogFollower follower(FollowScene& scene, FileSystem& fs, FollowerOptions options = {}) const {
    options.fetch_threads = 0;  // Operations have then one order.
    CheckpointTargetOptions how;
    how.copy_on_write = copy_on_write;
    how.note = options.note;
    return LogFollower(scene.shared_store(), fs, state_path(), make_checkpoint_target(fs, path, how), options);
  }
};

inline constexpr FollowedCheckpoint kFollowedCheckpoints[] = {
    {"a file in place", "/d/live.safetensors", false},
    {"a directory in place", "/d/live", false},
    {"a file by copies", "/d/live.safetensors", true},
    {"a directory by copies", "/d/live", true},
};

}  // namespace sparsecast::test
