// SPDX-License-Identifier: Apache-2.0
#include "support/log_race.hpp"

#include <barrier>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "log/reader/log_reader_state.hpp"
#include "sparsecast/error.hpp"
#include "support/log_scene.hpp"

namespace sparsecast::test {
namespace {

/// Barrier at which all publishers wait, so that they create the same commit at the same moment. It does not wait for a
/// late publisher: then something is wrong, and the number of winners shows it.
class Gate {
 public:
  explicit Gate(int publishers) : publishers_(publishers) {}
  void set_closed(bool closed) {
    const std::lock_guard lock(mutex_);
    closed_ = closed;
    waiting_ = 0;
  }
  void pass() {
    std::unique_lock lock(mutex_);
    if (!closed_) return;
    if (++waiting_ == publishers_) {
      closed_ = false;
      all_here_.notify_all();
      return;
    }
    all_here_.wait_for(lock, std::chrono::seconds(20), [&] { return !closed_; });
  }

 private:
  int publishers_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  bool closed_ = false;
  int waiting_ = 0;
};

/// A store with a gate before each commit.
class GatedStore : public ObjectStore {
 public:
  GatedStore(std::unique_ptr<ObjectStore> inner, Gate& gate) : inner_(std::move(inner)), gate_(gate) {}

  const std::string& location() const noexcept override { return inner_->location(); }
  void put(const std::string& key, ConstBytes bytes) override { inner_->put(key, bytes); }
  bool put_if_absent(const std::string& key, ConstBytes bytes) override {
    if (key.starts_with("commits/")) gate_.pass();
    return inner_->put_if_absent(key, bytes);
  }
  std::unique_ptr<ObjectUpload> upload(const std::string& key, std::uint64_t expected_bytes) override {
    return inner_->upload(key, expected_bytes);
  }
  std::optional<Bytes> get(const std::string& key, std::uint64_t max_bytes) override {
    return inner_->get(key, max_bytes);
  }
  std::optional<std::uint64_t> size(const std::string& key) override { return inner_->size(key); }
  void get_range(const std::string& key, std::uint64_t offset, std::span<std::byte> buffer) override {
    inner_->get_range(key, offset, buffer);
  }
  std::vector<StoredObject> list(const std::string& prefix) override { return inner_->list(prefix); }
  void remove(const std::string& key) override { inner_->remove(key); }
  std::chrono::system_clock::time_point wall_now() override { return inner_->wall_now(); }

 private:
  std::unique_ptr<ObjectStore> inner_;
  Gate& gate_;
};

/// Shared state of the publishers of a race: one state of the model forever, so that every version has the same digest
/// and any publisher may take over any head.
class Race {
 public:
  Race(const OpenStore& open_store, const RaceSettings& settings)
      : open_store_(open_store), settings_(settings), gate_(settings.publishers), barrier_(settings.publishers) {}

  RaceReport run() {
    {
      LogReader reader(open());
      LogWriter(reader, {}).create(scene_.creation());
    }
    std::vector<std::jthread> threads;
    for (int p = 0; p < settings_.publishers; ++p) {
      threads.emplace_back([this, p] { race(static_cast<std::uint64_t>(p)); });
    }
    threads.clear();
    verify();
    return report_;
  }

 private:
  std::shared_ptr<ObjectStore> open() { return std::make_shared<GatedStore>(open_store_(), gate_); }

  void race(std::uint64_t number) {
    LogReader reader(open());
    LogWriter writer(reader, {});
    Random random(settings_.seed * 1000 + number);
    for (std::uint64_t round = 0; round < settings_.races; ++round) {
      // Every other round all have the same version to write, at the same moment: seven of eight lose.
      together(number, [&] { gate_.set_closed(round % 2 == 0); });
      attempt([&] { return writer.take_over(scene_.table(), digest_); });
      together(number, [&] {
        gate_.set_closed(false);
        require_one_winner(round);
      });
      // Now and then the winner goes on publishing while the others still fight for the takeover.
      while (random.chance(0.5) && attempt([&] { return publish(writer); })) {
      }
    }
  }

  /// When all have come, the first of them takes the step, and then all go on.
  template <class Step>
  void together(std::uint64_t number, const Step& step) {
    barrier_.arrive_and_wait();
    if (number == 0) step();
    barrier_.arrive_and_wait();
  }

  LogCommit publish(LogWriter& writer) {
    const std::uint64_t version = writer.head().version + 1;
    Bytes delta;
    {
      const std::lock_guard lock(mutex_);
      delta = scene_.delta(0, 0, version);
    }
    return writer.publish(DeltaFile::over(delta, "delta"));
  }

  template <class Call>
  bool attempt(const Call& call) {
    try {
      const LogCommit commit = call();
      const std::lock_guard lock(mutex_);
      ++report_.wins;
      report_.takeovers += commit.kind == CommitKind::kTakeover ? 1 : 0;
      if (!owners_.emplace(commit.version, commit.record_hash).second) {
        fail("version " + std::to_string(commit.version) + " was granted twice");
      }
      return true;
    } catch (const Error& error) {
      const std::lock_guard lock(mutex_);
      if (error.code() == ErrorCode::kFenced || error.code() == ErrorCode::kUsage) {
        ++report_.fenced;
      } else {
        fail(std::string("a publisher failed: ") + error.what());
      }
      return false;
    }
  }

  void require_one_winner(std::uint64_t round) {
    const std::lock_guard lock(mutex_);
    if (round % 2 == 0 && report_.takeovers != takeovers_before_ + 1) fail("a race without exactly one winner");
    takeovers_before_ = report_.takeovers;
  }

  void verify() {
    LogReader reader(open());
    const LogCommit head = *reader.head();
    report_.versions = head.version;
    LogCommit before = *reader.commit(0);
    for (std::uint64_t version = 1; version <= head.version; ++version) {
      const LogCommit commit = *reader.commit(version);
      require_follows(before, commit, "commit");
      const auto owner = owners_.find(version);
      if (owner == owners_.end() || owner->second != commit.record_hash) {
        fail("version " + std::to_string(version) + " is not of whom it was granted to");
      }
      before = commit;
    }
    if (owners_.size() != head.version) fail("versions were granted that are not in the log");
  }

  void fail(const std::string& what) {
    if (report_.problem.empty()) report_.problem = what;
  }

  const OpenStore& open_store_;
  RaceSettings settings_;
  Gate gate_;
  std::barrier<> barrier_;
  LogScene scene_{1, 20};
  StateDigest digest_ = scene_.digest(0);
  std::mutex mutex_;
  std::map<std::uint64_t, ContentHash> owners_;
  RaceReport report_;
  std::uint64_t takeovers_before_ = 0;
};

}  // namespace

RaceReport race_publishers(const OpenStore& open_store, const RaceSettings& settings) {
  return Race(open_store, settings).run();
}

RaceReport race_publishers(const std::string& directory, const RaceSettings& settings) {
  return race_publishers([&] { return open_directory_store(FileSystem::posix(), directory + "/log"); }, settings);
}

}  // namespace sparsecast::test
