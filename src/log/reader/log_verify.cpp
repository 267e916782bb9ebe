// SPDX-License-Identifier: Apache-2.0

// Verifies a whole log: reads all objects and checks that they are consistent.

#include <fmt/format.h>

#include <map>

#include "checkpoint/checkpoint_store.hpp"
#include "log/format/log_keys.hpp"
#include "log/format/records.hpp"
#include "log/reader/log_reader_state.hpp"
#include "log/reader/retention.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

bool is_of_the_machine(ErrorCode code) {
  return code == ErrorCode::kIo || code == ErrorCode::kTimeout || code == ErrorCode::kUnauthenticated;
}

class Verification {
 public:
  Verification(std::shared_ptr<ObjectStore> store, const LogTrust& trust, FileSystem& fs, const std::string& scratch,
               const LogVerifyOptions& options)
      : reader_(std::move(store), trust), fs_(fs), scratch_(scratch), options_(options) {}

  LogVerifyReport run() {
    std::optional<LogCommit> head;
    bool any = true;
    check(kCommitPrefix, [&] { any = (head = reader_.head()).has_value(); });
    if (!any) throw Error(ErrorCode::kUsage, "there is no delta log", reader_.store().location());
    if (!head) return std::move(report_);
    report_.head = head->version;
    report_.epoch = head->epoch;
    report_.floor = head->version;  // Until the floor is known, so that objects that may be gone are not missed.
    check(kFloorKey, [&] { report_.floor = reader_.floor(); });
    check_catalog();
    total_ = (report_.head - std::min(report_.head, report_.floor)) + catalog_.merged.size() + catalog_.anchors.size();
    check_commits();
    for (const DeltaRef& ref : catalog_.merged) check_merged(ref);
    if (options_.anchors) {
      for (const AnchorRef& ref : catalog_.anchors) check_anchor(ref);
    }
    for (const StoredLease& stored : read_leases(reader_.store())) {
      if (stored.broken) complain(lease_key(stored.lease.name), ErrorCode::kCorrupt, "the lease cannot be read");
    }
    return std::move(report_);
  }

 private:
  void complain(const std::string& key, ErrorCode code, const std::string& message) {
    ++report_.problem_count;
    if (report_.problems.size() < options_.max_problems) report_.problems.push_back({key, code, message});
  }
  template <class Step>
  bool check(const std::string& key, const Step& step) {
    try {
      step();
      return true;
    } catch (const Error& error) {
      if (is_of_the_machine(error.code())) throw;
      complain(key, error.code(), error.what());
      return false;
    }
  }
  void advance() {
    ++done_;
    if (options_.progress) options_.progress(done_, total_);
  }

  void check_catalog() {
    check(kCatalogKey, [&] {
      if (std::optional<LogCatalog> found = reader_.catalog()) {
        catalog_ = std::move(*found);
      } else if (const auto record = reader_.store().get(kCatalogKey, kMaxRecordBytes)) {
        parse_log_catalog(*record, kCatalogKey);  // Throws an error that says why the catalog is unusable.
      }
    });
  }

  void check_commits() {
    report_.first = first_version();
    std::map<std::uint64_t, DeltaRef> listed;
    for (const DeltaRef& ref : catalog_.deltas) listed[ref.to] = ref;
    std::optional<LogCommit> before;
    for (std::uint64_t version = report_.first; version <= report_.head; ++version) {
      const std::string key = commit_key(version);
      std::optional<LogCommit> commit;
      check(key, [&] {
        commit = reader_.commit(version);
        if (!commit) throw Error(ErrorCode::kGone, "there is no such commit, and there are later ones");
        if (version > report_.first && before) require_follows(*before, *commit, key);
        if (version == report_.first && commit->kind != CommitKind::kGenesis) {
          throw Error(ErrorCode::kMixed, "the first version is no genesis");
        }
      });
      if (commit) {
        ++report_.commits;
        const auto entry = listed.find(version);
        if (entry != listed.end() &&
            (entry->second.hash != commit->delta || entry->second.bytes != commit->delta_bytes))
          complain(kCatalogKey, ErrorCode::kMixed, fmt::format("names another delta for version {}", version));
        if (version > report_.first && version > report_.floor) check_delta(*commit);
      }
      before = std::move(commit);
    }
  }

  std::uint64_t first_version() {
    // Checking starts at the first commit, not at the floor, because commits are never removed.
    if (reader_.store().size(commit_key(0))) return 0;
    for (const StoredObject& object : reader_.store().list(kCommitPrefix)) {
      if (const auto version = version_of_commit_key(object.key)) return *version;
    }
    return report_.head;
  }

  template <class Body>
  bool with_delta(const DeltaRef& ref, const Body& body) {
    const std::string path = scratch_ + "/sparsecast-verify.scd";
    const bool good = check(delta_key(ref), [&] {
      reader_.fetch_delta(ref, fs_, path);
      const DeltaFile delta = DeltaFile::open(fs_, path);
      if (delta.report().changed != delta.commit().changed) {
        throw Error(ErrorCode::kCorrupt, "its blocks hold another number of changes than it says");
      }
      if (delta.header().base_version != ref.from || delta.header().version != ref.to) {
        throw Error(ErrorCode::kMixed,
                    fmt::format("it leads from version {} to {}", delta.header().base_version, delta.header().version));
      }
      body(delta);
    });
    if (fs_.exists(path)) fs_.remove(path);
    if (good) report_.bytes += ref.bytes;
    advance();
    return good;
  }
  static void require_ends(const DeltaFile& delta, const LogCommit& commit, const StateDigest& base) {
    const auto mixed = [](const char* what) { throw Error(ErrorCode::kMixed, what); };
    if (!(delta.header().stream == commit.stream)) mixed("it is of another stream");
    if (!(delta.header().table_hash == commit.table_hash)) mixed("it carries another tensor table");
    if (!(delta.header().base_digest == base)) mixed("it starts from another digest than that of its version");
    if (!(delta.commit().result_digest == commit.digest)) mixed("it leads to another digest than that of its version");
  }
  void check_delta(const LogCommit& commit) {
    const DeltaRef ref{commit.version - 1, commit.version, commit.delta, commit.delta_bytes};
    if (with_delta(ref, [&](const DeltaFile& delta) {
          require_ends(delta, commit, commit.base_digest);
          if (delta.commit().changed != commit.changed) {
            throw Error(ErrorCode::kMixed, "it changes another number of elements than its commit says");
          }
        })) {
      ++report_.deltas;
    }
  }
  LogCommit commit_of(std::uint64_t version) {
    std::optional<LogCommit> commit = reader_.commit(version);
    if (!commit) throw Error(ErrorCode::kMixed, fmt::format("there is no version {}", version));
    return *commit;
  }
  void check_merged(const DeltaRef& ref) {
    if (with_delta(
            ref, [&](const DeltaFile& delta) { require_ends(delta, commit_of(ref.to), commit_of(ref.from).digest); })) {
      ++report_.merged;
    }
  }

  void check_anchor(const AnchorRef& ref) {
    const std::string directory = scratch_ + "/sparsecast-verify.anchor";
    fs_.make_directory(directory);
    const auto clear = [&] {
      for (const std::string& name : fs_.list(directory)) fs_.remove(directory + "/" + name);
    };
    clear();
    if (check(anchor_record_key(ref), [&] {
          const LogAnchor anchor = reader_.anchor(ref);
          reader_.fetch_anchor(anchor, fs_, directory);
          const CheckpointStore checkpoint(Checkpoint::open(fs_, directory));
          if (!(checkpoint.table().hash() == anchor.table_hash)) {
            throw Error(ErrorCode::kMixed, "its files hold other tensors than it says");
          }
          if (!(sum(digest_store(checkpoint, options_.threads)) == anchor.digest)) {
            throw Error(ErrorCode::kMixed, "its files have another digest than it says");
          }
        })) {
      ++report_.anchors;
      report_.bytes += ref.bytes;
    }
    clear();
    fs_.remove(directory);
    advance();
  }

  LogReader reader_;
  FileSystem& fs_;
  std::string scratch_;
  const LogVerifyOptions& options_;
  LogCatalog catalog_;
  LogVerifyReport report_;
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace

LogVerifyReport verify_log(std::shared_ptr<ObjectStore> store, const LogTrust& trust, FileSystem& fs,
                           const std::string& scratch, const LogVerifyOptions& options) {
  return Verification(std::move(store), trust, fs, scratch, options).run();
}

}  // namespace sparsecast
