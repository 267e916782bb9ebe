// SPDX-License-Identifier: Apache-2.0
#pragma once

// Waiting on NCCL and the device without ever waiting for them: every wait polls, and ends by the deadline, by an error
// that NCCL reports, or by the news that a peer has given up.

#include <functional>
#include <future>
#include <memory>
#include <string>

#include "core/poll_pause.hpp"
#include "sparsecast/control_channel.hpp"
#include "transport/nccl/device_api.hpp"
#include "transport/nccl/nccl_library.hpp"

namespace sparsecast {

/// Where NCCL writes a communicator that it makes of another one. A thread of its own does so, late and also after a
/// failure, until the abort of that one has ended: so whoever waits for it shares the memory with who stops it.
using NewCommunicator = std::shared_ptr<ncclComm_t>;

/// Returns what NCCL has written there last.
ncclComm_t communicator_in(const NewCommunicator& made) noexcept;

/// Throws unless the result is good or in progress; with NCCL's own words.
void check_nccl(const NcclFunctions& nccl, ncclResult_t result, ncclComm_t communicator, const std::string& call);

class Watchdog {
 public:
  Watchdog(const NcclFunctions& nccl, std::shared_ptr<ControlChannel> control)
      : nccl_(&nccl), control_(std::move(control)) {}

  /// Waits until `ready()`. `what` names the awaited thing in errors. Throws Error{kTimeout | kPeerFailed | ...}.
  template <class Ready>
  void wait(const Ready& ready, ncclComm_t communicator, Deadline deadline, const std::string& what) {
    PollPause pace;
    for (unsigned turn = 0; !ready(); ++turn) {
      look(communicator, deadline, what, turn);
      pace.pause();
    }
  }
  /// Waits until NCCL has finished its work on the host for the communicator; nothing else may be issued before.
  void settle(ncclComm_t communicator, Deadline deadline, const std::string& what);
  /// Runs `make`, a call of NCCL that writes to `made` and may wait for other ranks before it returns, in a thread of
  /// its own that is on `device`, and returns its result. When the wait ends early, it throws as wait() does, and that
  /// thread aborts what the call makes nevertheless.
  ncclResult_t make_apart(DeviceApi& api, int device, const NewCommunicator& made, std::function<ncclResult_t()> make,
                          Deadline deadline, const std::string& what);
  /// Does one turn of a wait: throws when there is a reason to end it, otherwise returns at once. `turn` counts them.
  void look(ncclComm_t communicator, Deadline deadline, const std::string& what, unsigned turn);

 private:
  const NcclFunctions* nccl_;
  std::shared_ptr<ControlChannel> control_;
};

/// Returns whether NCCL has finished its work on the host for the communicator.
bool settled(const NcclFunctions& nccl, ncclComm_t communicator) noexcept;

// A stop has two halves, so that several communicators stop together: the work of one may lie behind that of another
// on the device, and ends only after it.

/// Returns how long the second halves of stops that begin now may wait.
Deadline stop_deadline() noexcept;

/// Begins to stop all work of the communicator, which is on `device`, and to free it; then the same for what it leaves
/// in `made`, if that is given.
std::future<void> begin_abort(const NcclFunctions& nccl, DeviceApi& api, int device, ncclComm_t communicator,
                              NewCommunicator made = nullptr) noexcept;
/// Returns false when NCCL does not come back from the abort: then its memory must be left alone.
bool finish_abort(const std::future<void>& aborting, Deadline deadline) noexcept;
/// Begins to stop all work but keeps the communicator for ncclCommShrink. False when that is not possible, as on one
/// that is not settled: NCCL would free the job that it has in progress, and use it later.
bool begin_revoke(const NcclFunctions& nccl, ncclComm_t communicator) noexcept;
bool finish_revoke(const NcclFunctions& nccl, ncclComm_t communicator, Deadline deadline) noexcept;
/// Destroys the communicator in order, within a time limit; otherwise aborts it.
bool destroy_communicator(const NcclFunctions& nccl, DeviceApi& api, int device, ncclComm_t communicator) noexcept;

}  // namespace sparsecast
