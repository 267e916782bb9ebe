// SPDX-License-Identifier: Apache-2.0
#pragma once

// Waits for NCCL and the device without blocking calls. Every wait polls, and ends at the deadline, at an error from
// NCCL, or when a peer has given up.

#include <functional>
#include <future>
#include <memory>
#include <string>

#include "core/poll_pause.hpp"
#include "sparsecast/control_channel.hpp"
#include "transport/nccl/device_api.hpp"
#include "transport/nccl/nccl_library.hpp"

namespace sparsecast {

/// Shared memory to which NCCL writes a communicator that it makes from another one. An NCCL thread may write there
/// late, even after a failure, until the abort of the old communicator has ended. So the code that waits and the code
/// that stops the communicator share ownership of the memory.
using NewCommunicator = std::shared_ptr<ncclComm_t>;

/// Returns the communicator that NCCL has last written to `made`.
ncclComm_t communicator_in(const NewCommunicator& made) noexcept;

/// Throws an error with NCCL's text unless `result` is ncclSuccess or ncclInProgress. `call` names the NCCL function.
void check_nccl(const NcclFunctions& nccl, ncclResult_t result, ncclComm_t communicator, const std::string& call);

/// Waits for work of a communicator, and ends a wait when NCCL reports an error, another rank gives up, the thread is
/// interrupted, or the deadline passes.
class Watchdog {
 public:
  Watchdog(const NcclFunctions& nccl, std::shared_ptr<ControlChannel> control)
      : nccl_(&nccl), control_(std::move(control)) {}

  /// Waits until ready() returns true; between its calls, calls look() and pauses. Errors name `what` as the awaited
  /// event. Throws Error{kTimeout | kPeerFailed | ...}.
  template <class Ready>
  void wait(const Ready& ready, ncclComm_t communicator, Deadline deadline, const std::string& what) {
    PollPause pace;
    for (unsigned turn = 0; !ready(); ++turn) {
      look(communicator, deadline, what, turn);
      pace.pause();
    }
  }
  /// Waits until settled() is true for the communicator. Until then no other call may be issued on the communicator.
  /// Throws as wait() does.
  void settle(ncclComm_t communicator, Deadline deadline, const std::string& what);
  /// Runs make() in a separate thread on `device` and returns its result. make() is an NCCL call that writes to `made`
  /// and may block for other ranks. If the wait ends early, throws as wait() does, and the thread aborts any
  /// communicator that the call still makes.
  ncclResult_t make_apart(DeviceApi& api, int device, const NewCommunicator& made, std::function<ncclResult_t()> make,
                          Deadline deadline, const std::string& what);
  /// Does one turn of a wait: throws when there is a reason to end the wait (see the class), and returns at once when
  /// there is none. `turn` is the number of the turn, from 0; only some turns ask the control channel, because that
  /// costs more.
  void look(ncclComm_t communicator, Deadline deadline, const std::string& what, unsigned turn);

 private:
  const NcclFunctions* nccl_;
  std::shared_ptr<ControlChannel> control_;
};

/// Returns true when NCCL has finished all calls on the communicator without an error. Their work on the device may
/// still run.
bool settled(const NcclFunctions& nccl, ncclComm_t communicator) noexcept;

// A stop has two halves, so that several communicators stop together: on the device, the work of one may be queued
// behind that of another and ends only after it.

/// Returns the deadline for finish_abort() or finish_revoke() of a stop that begins now.
Deadline stop_deadline() noexcept;

/// Begins to stop all work of the communicator on `device` and to free the communicator, in the background. Afterwards
/// does the same for a communicator that NCCL has written to `made`, unless `made` is null. Returns a future that is
/// ready when both have ended.
std::future<void> begin_abort(const NcclFunctions& nccl, DeviceApi& api, int device, ncclComm_t communicator,
                              NewCommunicator made = nullptr) noexcept;
/// Waits for `aborting`, an abort that begin_abort() has begun. Returns true when it has ended. Returns false when it
/// has not ended by the deadline: memory that NCCL uses must then not be freed.
bool finish_abort(const std::future<void>& aborting, Deadline deadline) noexcept;
/// Begins to stop all work of the communicator, but keeps the communicator for ncclCommShrink. Returns true when the
/// stop has begun, and false when it is not possible: when the library lacks the functions, or when the communicator is
/// not settled, because NCCL would free its running job and use it later.
bool begin_revoke(const NcclFunctions& nccl, ncclComm_t communicator) noexcept;
/// Waits for a stop that begin_revoke() has begun. Returns true when it has ended by the deadline.
bool finish_revoke(const NcclFunctions& nccl, ncclComm_t communicator, Deadline deadline) noexcept;
/// Destroys the communicator in good order, or aborts it when that takes too long. Returns true when it is gone.
/// Returns false when NCCL has not returned in time from the abort either: memory that NCCL uses must then not be
/// freed.
bool destroy_communicator(const NcclFunctions& nccl, DeviceApi& api, int device, ncclComm_t communicator) noexcept;

}  // namespace sparsecast
