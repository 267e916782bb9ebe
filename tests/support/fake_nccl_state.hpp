// SPDX-License-Identifier: Apache-2.0
#pragma once

// Communicators of the fake NCCL, and how their broadcasts come onto streams.

#ifdef SPARSECAST_HAVE_NCCL

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "sparsecast/digest.hpp"
#include "tests/support/fake_device.hpp"
#include "tests/support/fake_nccl.hpp"

namespace sparsecast::test {

struct Communicator;

/// One broadcast on its way to a stream.
struct Broadcast {
  Communicator* communicator = nullptr;
  std::uint64_t number = 0;
  std::span<std::byte> data;
  int root = 0;
  cudaStream_t stream = nullptr;
};

/// Broadcasts of a group that has ended, to be launched when all its communicators were polled.
struct Launch {
  std::vector<Broadcast> broadcasts;
  std::set<Communicator*> not_polled;
};

/// A thread of NCCL's own that makes a communicator. It writes it where the caller has said, late, and also when it is
/// aborted.
struct Job {
  ncclComm_t* out = nullptr;
  std::atomic<bool> aborted{false};
  std::atomic<bool> done{false};
};

struct Communicator {
  std::shared_ptr<World> world;
  int rank = 0;
  int device = 0;
  std::uint64_t issued = 0;
  std::uint64_t launches = 0;
  std::shared_ptr<Launch> launching;
  ncclResult_t async_error = ncclSuccess;
  bool stopped = false;
  bool freed = false;
  bool suspended = false;
  std::uint64_t meetings = 0;  ///< Suspends and resumes, for which the ranks wait for each other.
  std::thread::id issuer;
  std::shared_ptr<Job> job;  ///< That makes a communicator of this one, or, in a growth, this one.
  int busy_polls = 0;        ///< So often it still says that it is in progress.
  std::uint64_t splits = 0;  ///< Number of splits that it took part in.
};

/// What a rank is in a communicator.
struct Place {
  std::shared_ptr<World> world;
  int rank = 0;
};

inline Communicator* of(ncclComm_t handle) { return reinterpret_cast<Communicator*>(handle); }
inline ncclComm_t handle_of(Communicator* communicator) { return reinterpret_cast<ncclComm_t>(communicator); }

/// Returns an id that is equal on all ranks with equal arguments.
inline std::uint64_t derived_id(const World& world, std::string_view how, std::span<const std::uint64_t> words) {
  std::uint64_t id = xxh3_64(std::as_bytes(std::span(how)), world.id());
  for (const std::uint64_t word : words) id = xxh3_64(std::as_bytes(std::span(&word, 1)), id);
  return id;
}

struct FakeNccl::State {
  State(FakeNccl& owner, std::unique_ptr<Worlds> shared)
      : fake(owner),
        worlds(std::move(shared)),
        device(fake.faults.same_gpu, fake.counts.allocated, fake.counts.host_waits, [this] { return call_fails(); }) {}

  FakeNccl& fake;
  std::unique_ptr<Worlds> worlds;
  FakeDevice device;
  std::mutex mutex;
  std::vector<std::unique_ptr<Communicator>> communicators;  ///< Freed ones too: a use of them is noticed.
  std::atomic<bool> closing{false};
  std::atomic<int> hanging{0};     ///< Threads in a call that waits.
  std::vector<std::jthread> jobs;  ///< They end with the fake.

  std::mutex misuse_mutex;
  std::vector<std::string> misuses;
  void misuse(const std::string& what) {
    const std::lock_guard lock(misuse_mutex);
    misuses.push_back(what);
  }

  /// Requires the lock.
  Communicator* add(std::shared_ptr<World> world, int rank, int device_of_rank) {
    communicators.push_back(std::make_unique<Communicator>());
    communicators.back()->world = std::move(world);
    communicators.back()->rank = rank;
    communicators.back()->device = device_of_rank;
    return communicators.back().get();
  }

  bool is_over(const Communicator& communicator) {
    const std::lock_guard lock(mutex);
    return communicator.stopped || closing;
  }

  std::atomic<int> failing_device{-1};
  std::atomic<int> calls_left{0};
  std::atomic<bool> failed{false};
  bool call_fails() {
    if (failing_device != FakeDevice::device_in_use() || calls_left-- != 0) return false;
    failed = true;
    return true;
  }

  bool never_arrives(const Communicator& communicator, const Broadcast& broadcast) const {
    const std::uint64_t lost = fake.faults.hanging_bytes;
    return (lost != 0 && broadcast.data.size() >= lost) || fake.faults.never_arrive.count(communicator.rank) != 0;
  }

  /// Runs broadcasts of one communicator, all at once.
  void run(const Communicator& communicator, std::uint64_t launch, const std::vector<Broadcast>& broadcasts) {
    World& world = *communicator.world;
    for (const Broadcast& broadcast : broadcasts) {
      if (never_arrives(communicator, broadcast)) break;
      Bytes sent;
      if (communicator.rank == broadcast.root) sent.assign(broadcast.data.begin(), broadcast.data.end());
      if (sent.size() == sizeof(CountTable)) damage(sent);
      world.arrive(broadcast.number, {communicator.rank, broadcast.root, launch, sent});
    }
    for (const Broadcast& broadcast : broadcasts) {
      std::optional<Message> message;
      while (!is_over(communicator) && !(message = world.message(broadcast.number)))
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      if (!message) return;
      if (!message->one_root) misuse("the ranks disagree on the root");
      if (!message->one_launch) misuse("the ranks group their broadcasts differently");
      if (message->data.size() != broadcast.data.size()) {
        misuse("the ranks disagree on the size of broadcast " + std::to_string(broadcast.number));
      }
      const std::size_t bytes = std::min(broadcast.data.size(), message->data.size());
      // A source's memory is only read.
      if (communicator.rank != broadcast.root) std::memcpy(broadcast.data.data(), message->data.data(), bytes);
    }
  }

  void damage(Bytes& sent) const {
    if (fake.faults.damage_tables) sent[100] ^= std::byte{4};
    if (!fake.faults.forge_tables) return;
    CountTable table;
    std::memcpy(&table, sent.data(), sizeof(table));
    fake.faults.forge_tables(table);
    std::memcpy(sent.data(), &table, sizeof(table));
  }

  /// Enqueues broadcasts, one communicator after the other; all in one stream. Requires the lock.
  void launch(const std::vector<Broadcast>& broadcasts) {
    std::map<std::uint64_t, std::vector<Broadcast>> by_world;
    for (const Broadcast& broadcast : broadcasts) by_world[broadcast.communicator->world->id()].push_back(broadcast);
    for (const auto& [world, together] : by_world) {
      Communicator* const communicator = together.front().communicator;
      FakeDevice::enqueue(together.front().stream, [this, communicator, number = communicator->launches++, together] {
        run(*communicator, number, together);
      });
    }
  }

  ncclResult_t end_group(std::vector<Broadcast> broadcasts) {
    const std::lock_guard lock(mutex);
    if (broadcasts.empty()) return ncclSuccess;
    for (const Broadcast& a : broadcasts) {
      for (const Broadcast& b : broadcasts) {
        const bool apart =
            a.data.data() + a.data.size() <= b.data.data() || b.data.data() + b.data.size() <= a.data.data();
        if (&a != &b && !apart) misuse("two broadcasts of a group share memory");
      }
    }
    const auto launch = std::make_shared<Launch>();
    launch->broadcasts = std::move(broadcasts);
    for (const Broadcast& broadcast : launch->broadcasts) {
      launch->not_polled.insert(broadcast.communicator);
      broadcast.communicator->launching = launch;
      ++fake.counts.broadcasts;
      broadcast.communicator->busy_polls = fake.faults.busy_polls;
    }
    return ncclInProgress;
  }

  /// Puts a broadcast into a group of calls.
  ncclResult_t broadcast(ncclComm_t handle, void* data, std::size_t bytes, int root, cudaStream_t stream,
                         std::vector<Broadcast>& group) {
    check_ready(handle, "ncclBroadcast");
    Communicator* const communicator = of(handle);
    const std::lock_guard lock(mutex);
    if (communicator->stopped) return ncclInvalidUsage;
    if (communicator->issuer == std::thread::id{}) communicator->issuer = std::this_thread::get_id();
    if (communicator->issuer != std::this_thread::get_id()) misuse("two threads issue");
    const Broadcast broadcast{
        communicator, communicator->issued++, {static_cast<std::byte*>(data), bytes}, root, stream};
    if (communicator->rank == fake.faults.async_error_rank &&
        communicator->issued > static_cast<std::uint64_t>(fake.faults.healthy_broadcasts)) {
      communicator->async_error = ncclRemoteError;
    }
    group.push_back(broadcast);
    return ncclSuccess;
  }

  /// Returns whether no job and no launch of it is in progress. The group that it is in is launched by the first poll
  /// of the last one. Requires the lock.
  bool poll(Communicator& communicator) {
    if (communicator.job) {
      if (!communicator.job->done) return false;
      communicator.job.reset();
    }
    if (communicator.busy_polls > 0) {
      --communicator.busy_polls;
      return false;
    }
    if (!communicator.launching) return true;
    Launch& launching = *communicator.launching;
    const bool first = launching.not_polled.erase(&communicator) != 0;
    if (!launching.not_polled.empty()) return false;
    if (first) {
      launch(launching.broadcasts);
      return false;
    }
    communicator.launching.reset();
    return true;
  }

  /// Begins a job that makes a communicator when `find` knows its place and all its ranks are there; it belongs to
  /// `owner`, which is in progress until then. Requires the lock.
  ncclResult_t begin_job(Communicator& owner, ncclComm_t* out, std::function<std::optional<Place>()> find);

  void check_config(const ncclConfig_t& config) {
    if (config.blocking != 0) misuse("a blocking communicator");
    fake.counts.max_ctas = config.maxCTAs;
  }

  ncclResult_t init(ncclComm_t* out, int size, const ncclUniqueId& id, int rank, const ncclConfig_t* config) {
    check_config(*config);
    const std::lock_guard lock(mutex);
    std::uint64_t number = 0;
    std::memcpy(&number, id.internal, sizeof(number));
    Communicator* const made = add(worlds->of(number, size), rank, FakeDevice::device_in_use());
    made->world->join(rank);
    made->busy_polls = fake.faults.busy_polls;
    *out = handle_of(made);
    return ncclInProgress;
  }

  /// The new communicator is there at once, and its job writes it once more.
  ncclResult_t grow(Communicator* parent, int size, const ncclUniqueId* given, int rank, ncclComm_t* out,
                    const ncclConfig_t* config);

  /// Waits in the call, as NCCL does, for the id that the coordinator sends to the other ranks.
  bool wait_for_growth(Communicator& parent, ncclUniqueId& id);

  ncclResult_t split(Communicator& parent, int color, int key, ncclComm_t* out);

  ncclResult_t shrink(Communicator& parent, std::span<const int> lost, ncclComm_t* out, int flags);

  ncclResult_t async_error(ncclComm_t handle, ncclResult_t* state) {
    const std::lock_guard lock(mutex);
    Communicator* const communicator = of(handle);
    if (communicator->freed) misuse("ncclCommGetAsyncError on a freed communicator");
    *state = communicator->async_error;
    if (*state != ncclSuccess) return ncclSuccess;
    const bool ready = poll(*communicator);
    if (fake.faults.init_hangs || !communicator->world->all_joined() || !ready) *state = ncclInProgress;
    if (fake.faults.remote_errors && !communicator->stopped && communicator->world->any_left()) {
      *state = ncclRemoteError;
    }
    return ncclSuccess;
  }

  /// Notes a call that NCCL does not allow in the state of the communicator, or in the calling thread.
  void check_call(ncclComm_t handle, const char* call) {
    const std::lock_guard lock(mutex);
    const Communicator& communicator = *of(handle);
    if (communicator.freed) misuse(std::string(call) + " on a freed communicator");
    if (communicator.device != FakeDevice::device_in_use()) {
      misuse(std::string(call) + " in a thread that is on another device, where it would make a context");
    }
  }
  /// For calls that need a communicator whose previous one has ended.
  void check_ready(ncclComm_t handle, const char* call) {
    check_call(handle, call);
    const std::lock_guard lock(mutex);
    if (of(handle)->launching || of(handle)->job) misuse(std::string(call) + " before the communicator is settled");
    if (of(handle)->suspended) misuse(std::string(call) + " on a suspended communicator");
  }

  /// Suspends or resumes, in the background, when all ranks have asked for it.
  ncclResult_t meet(Communicator& communicator, bool suspend);

  /// Ends its job, which writes what it has made before, and the work on its streams.
  void abort(ncclComm_t handle) {
    std::shared_ptr<Job> job;
    {
      const std::lock_guard lock(mutex);
      job = of(handle)->job;
      of(handle)->stopped = true;
    }
    if (job) job->aborted = true;
    while (job && !job->done) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    stop(handle, true);
  }

  void stop(ncclComm_t handle, bool free_it) {
    const std::lock_guard lock(mutex);
    if (of(handle)->freed) misuse("a communicator is stopped after it was freed");
    of(handle)->stopped = true;
    of(handle)->freed = free_it;
    of(handle)->async_error = ncclSuccess;
    of(handle)->launching.reset();
    of(handle)->job.reset();
  }
};

}  // namespace sparsecast::test

#endif
