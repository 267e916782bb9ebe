// SPDX-License-Identifier: Apache-2.0
#pragma once

// NCCL and the CUDA runtime for tests: ranks are threads, or processes (fake_world.hpp); memory is the host's, a stream
// is a thread with a queue, a broadcast is done when every rank has issued it. Faults are injected by rank. What NCCL
// leaves undefined (calls on a freed communicator, another thread, ranks that disagree) is kept in misuses().
//
// A group of calls, or one outside of a group, does nothing before its end, and then only when the caller has polled
// every communicator in it once: it is launched in the background. A communicator that is made of another one is made
// by a thread of its own, which writes it where the caller has said, also after a failure. The broadcasts of one
// communicator run at once, and the communicators one after the other, in an order that is the same on all ranks.

#ifdef SPARSECAST_HAVE_NCCL

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "tests/support/fake_world.hpp"
#include "transport/nccl/nccl_group.hpp"

namespace sparsecast::test {

struct FakeFaults {
  std::set<int> never_arrive;  ///< These ranks' broadcasts never reach the others (a dead device).
  int async_error_rank = -1;   ///< After `healthy_broadcasts` of its own this rank's communicator fails.
  int healthy_broadcasts = 0;
  std::set<int> no_mem_alloc;  ///< Devices on which ncclMemAlloc fails.
  std::set<int> no_register;   ///< Devices... of ranks on which ncclCommRegister fails.
  bool init_hangs = false;
  bool derivation_hangs = false;  ///< No split, shrink or growth ends but by an abort.
  bool growth_is_lost = false;    ///< The coordinator's id never reaches the other ranks.
  bool remote_errors = false;     ///< A communicator of which a rank is killed fails, as over sockets.
  /// Communicators say so often that they are in progress, after each call. May be set at any time.
  std::atomic<int> busy_polls{0};
  /// May be set at any time: broadcasts of so many bytes never arrive, and ncclCommAbort comes back with the fake's end
  /// only. 0: none.
  std::atomic<std::uint64_t> hanging_bytes{0};
  bool damage_tables = false;                     ///< One bit of every message of a table's size flips.
  std::function<void(CountTable&)> forge_tables;  ///< Changes every message of a table's size.
  std::set<int> same_gpu;                         ///< Devices that report one and the same UUID.
};

struct FakeCounts {
  std::atomic<int> inits{0}, scalable_inits{0}, splits{0}, shrinks{0}, grows{0}, revokes{0}, aborts{0}, destroys{0};
  std::atomic<int> broadcasts{0}, groups{0}, registrations{0}, deregistrations{0}, mem_allocs{0}, mem_frees{0};
  std::atomic<int> suspends{0}, resumes{0};
  std::atomic<int> max_ctas{0};               ///< Of the newest communicator, as configured.
  std::atomic<int> configured_broadcasts{0};  ///< By ncclBroadcastConfig.
  std::atomic<int> broadcast_ctas{0};         ///< Of the newest of those, and its tag.
  std::atomic<std::uint64_t> profiler_tag{0};
  std::atomic<int> allocated{0};   ///< Device and pinned blocks that are not freed.
  std::atomic<int> host_waits{0};  ///< Records of events that the host has waited for.
};

/// One at a time: NCCL's functions carry no context.
class FakeNccl {
 public:
  explicit FakeNccl(std::unique_ptr<Worlds> worlds = make_thread_worlds());
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  NcclRuntime runtime();
  NcclFunctions functions;  ///< Take entry points away to play an older library.
  FakeFaults faults;        ///< To be set before the ranks start.
  FakeCounts counts;

  struct State;
  State& state() { return *state_; }
  DeviceApi& device();
  /// Lets the call number `call` from now on fail once, of those that move data on `device`: of NCCL, and of the
  /// device.
  void fail_call(int device, int call);
  bool call_has_failed() const;
  /// Closes the connections of the rank's communicators, as the death of its process does.
  void kill(int rank);
  /// Returns whether so many broadcasts were issued and no communicator has anything in progress on the host.
  bool settled_after(int broadcasts) const;
  /// Returns the number of communicators that were neither destroyed nor aborted.
  int living() const;
  /// Returns the undefined uses of NCCL by the channels; tests expect none.
  std::string misuses() const;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace sparsecast::test

#endif
