// SPDX-License-Identifier: Apache-2.0
#pragma once

// The group behind NcclTransport. It uses a table of NCCL functions and a device API, which tests replace by fakes.

#include <fmt/format.h>

#include <functional>
#include <future>
#include <optional>
#include <span>

#include "sync/frame_channel.hpp"
#include "transport/nccl/formation.hpp"
#include "transport/nccl/nccl_library.hpp"
#include "transport/nccl/staging.hpp"
#include "transport/nccl/watchdog.hpp"

namespace sparsecast {

/// NCCL library and device API that a group uses. Both exist until the process ends.
struct NcclRuntime {
  const NcclFunctions* functions = nullptr;
  DeviceApi* device = nullptr;
  NcclLibraryInfo info;
};

/// One NCCL communicator with its control channel and staging memory: the implementation of NcclTransport.
class NcclGroup final : public FrameChannel {
 public:
  /// Forms a new group over `control`, collectively, and returns it. `old` is the group that the new one replaces, or
  /// null. The communicator of `old` is shrunk, grown or stopped, and `old` cannot be used afterwards.
  static std::unique_ptr<NcclGroup> form(const NcclRuntime& runtime, std::shared_ptr<ControlChannel> control,
                                         const NcclOptions& options, NcclGroup* old, Deadline deadline);
  ~NcclGroup() override;
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  int rank() const noexcept { return control_->rank(); }
  int size() const noexcept { return control_->size(); }
  void broadcast(std::vector<Bytes>& records, int source, Deadline deadline);
  void exchange_heads(std::span<FrameTransfer> transfers, Deadline deadline) override;
  void broadcast_frames(std::span<FrameTransfer> transfers, Deadline deadline) override;
  ControlChannel& control() const noexcept { return *control_; }
  std::unique_ptr<NcclGroup> split(int color, int key, Deadline deadline);
  std::unique_ptr<NcclGroup> reform(std::shared_ptr<ControlChannel> members, Deadline deadline);
  void abort(const std::string& reason) noexcept;
  const NcclChannelReport& report() const noexcept { return report_; }

 private:
  friend class NcclRound;
  /// Function that copies the next `bytes` bytes of the host records to staging memory on the source, and from staging
  /// memory to the host records on other ranks. Each call continues where the last call stopped.
  using CopyPiece = std::function<void(std::byte* h_staging, std::uint64_t bytes)>;

  NcclGroup(const NcclRuntime& runtime, std::shared_ptr<ControlChannel> control, const NcclOptions& options);

  /// Runs body(), which uses all of `groups`, and returns its result. Throws Error{kPeerFailed} when one of the groups
  /// is broken already. An exception of body() breaks all of the groups and is thrown; its context names the call,
  /// `phase`.
  template <class Body>
  static auto guard(std::span<NcclGroup* const> groups, const char* phase, const Body& body);
  template <class Body>
  auto guard(const char* phase, const Body& body) {
    NcclGroup* const own = this;
    return guard({&own, 1}, phase, body);
  }
  static void fail(std::span<NcclGroup* const> groups, const Error& error) noexcept;
  void fail(const Error& error) noexcept {
    NcclGroup* const own = this;
    fail({&own, 1}, error);
  }
  bool give_up(const Error& error) noexcept;
  void abort_for_good() noexcept;
  std::string context(const char* phase) const;
  void check_source(int source, const char* phase) const;

  NcclRankInfo rank_info(const NcclGroup* old) const;
  void create(const FormationPlan& plan, NcclGroup* old, Deadline deadline);
  void shrink(NcclGroup& old, std::vector<int> lost, Deadline deadline);
  /// Makes the communicator of this group from the communicator of `old`, by ncclCommGrow. `old` is null on a rank that
  /// joins. `id` is the unique id from the coordinator, rank 0; it is null on ranks that get it from NCCL.
  void grow(NcclGroup* old, const ncclUniqueId* id, Deadline deadline);
  void register_staging(bool wanted, Deadline deadline);

  /// Enqueues an in-place broadcast of `bytes` bytes, and returns NCCL's result. Calls ncclBroadcastConfig if the
  /// options have settings for it and every rank has the function, otherwise ncclBroadcast.
  ncclResult_t enqueue(void* d_data, std::uint64_t bytes, int source) const;
  void issue(void* d_data, std::uint64_t bytes, int source, Deadline deadline);
  /// Waits until ready() returns true, while watching all of `groups` for failures. `what` names the awaited event in
  /// errors.
  template <class Ready>
  static void wait_for(std::span<NcclGroup* const> groups, const Ready& ready, Deadline deadline, const char* what);
  static void settle(std::span<NcclGroup* const> groups, Deadline deadline, const char* what);
  /// Resumes the suspended groups among `groups`. All ranks of these groups must call it, before every use of NCCL.
  static void resume(std::span<NcclGroup* const> groups, Deadline deadline);
  void resume(Deadline deadline) {
    NcclGroup* const own = this;
    resume({&own, 1}, deadline);
  }
  bool wake_up() noexcept;
  /// Begins to suspend the groups that suspend between rounds (NcclOptions::suspend_between_rounds).
  static void suspend(std::span<NcclGroup* const> groups);
  void wait_event(void* event, Deadline deadline, const std::string& what);
  /// Broadcasts `table`, the count table of `source`. Other ranks receive the table in Staging::h_table and check it;
  /// their own `table` is not used.
  void exchange_table(const CountTable& table, int source, Deadline deadline);
  /// Broadcasts the sizes of all records from `source`, and returns them on every rank.
  std::vector<std::uint64_t> exchange_sizes(std::vector<std::uint64_t> sizes, int source, Deadline deadline);
  void pipe(std::uint64_t total, int source, const CopyPiece& copy, Deadline deadline);

  NcclRuntime runtime_;
  std::shared_ptr<ControlChannel> control_;
  NcclOptions options_;
  std::shared_ptr<Staging> staging_;
  Watchdog watchdog_;
  ncclComm_t communicator_ = nullptr;
  /// Memory to which NCCL may still write a communicator: one that is made from this group's communicator or, during a
  /// growth, this group's own one. Null when there is none.
  NewCommunicator made_;
  std::vector<void*> registrations_;
  NcclChannelReport report_;
  std::uint64_t channel_ = 0;
  std::uint64_t sequence_ = 0;
  bool suspended_ = false;  ///< True when the communicator is suspended, or being suspended in the background.
  bool open_ = false;       ///< True when the group is formed, so that a shrink can start from it.
  bool derived_ = false;    ///< True when a shrink or a growth of this group has begun.
  std::optional<std::string> broken_;
  std::future<void> aborting_;  ///< Abort of the communicator in the background; valid only while it runs.
  bool revoking_ = false;       ///< True when the communicator is being stopped for a shrink.
};

template <class Body>
auto NcclGroup::guard(std::span<NcclGroup* const> groups, const char* phase, const Body& body) {
  const NcclGroup& first = *groups.front();
  const DeviceApiGuard on_device = first.staging_->enter();
  try {
    for (const NcclGroup* group : groups) {
      if (!group->broken_) continue;
      throw Error(ErrorCode::kPeerFailed,
                  fmt::format("the channel is broken since an earlier failure ({})", *group->broken_));
    }
    return body();
  } catch (const Error& error) {
    fail(groups, error);
    throw error.within(first.context(phase));
  } catch (const std::exception& error) {
    fail(groups, Error(ErrorCode::kPeerFailed, error.what()));
    throw;
  }
}

template <class Ready>
void NcclGroup::wait_for(std::span<NcclGroup* const> groups, const Ready& ready, Deadline deadline, const char* what) {
  PollPause pace;
  for (unsigned turn = 0; !ready(); ++turn) {
    for (NcclGroup* const group : groups) group->watchdog_.look(group->communicator_, deadline, what, turn);
    pace.pause();
  }
}

}  // namespace sparsecast
