// SPDX-License-Identifier: Apache-2.0
#ifdef SPARSECAST_HAVE_NCCL

#include "transport/nccl/watchdog.hpp"

#include <fmt/format.h>

#include <atomic>
#include <thread>
#include <utility>

#include "core/interrupt.hpp"

namespace sparsecast {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kStopPatience{10};
constexpr std::chrono::seconds kFinalizePatience{5};
constexpr int kNcclTimeout = 8;  ///< Value of ncclTimeout, which exists since 2.30.

ErrorCode code_of(ncclResult_t result) {
  switch (static_cast<int>(result)) {
    case ncclRemoteError:
      return ErrorCode::kPeerFailed;
    case ncclSystemError:
      return ErrorCode::kIo;
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return ErrorCode::kUsage;
    case kNcclTimeout:
      return ErrorCode::kTimeout;
    default:
      return ErrorCode::kDevice;
  }
}

ncclResult_t state_of(const NcclFunctions& nccl, ncclComm_t communicator) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = nccl.comm_get_async_error(communicator, &state);
  return result == ncclSuccess ? state : result;
}

/// Makes the device current in a thread of the library until the thread ends. Otherwise NCCL's calls, which restore the
/// device that was current before, would create a context on that device.
void use_quietly(DeviceApi& api, int device) noexcept {
  try {
    api.use_device(device);
  } catch (const Error&) {  // The next NCCL call reports the error again.
  }
}

/// Waits until NCCL has no unfinished call for the communicator. Returns false at the deadline or after an error.
bool becomes_quiet(const NcclFunctions& nccl, ncclComm_t communicator, Deadline deadline) {
  PollPause pace;
  for (;;) {
    const ncclResult_t state = state_of(nccl, communicator);
    if (state == ncclSuccess) return true;
    if (state != ncclInProgress || steady_clock::now() >= deadline) return false;
    pace.pause();
  }
}

}  // namespace

void check_nccl(const NcclFunctions& nccl, ncclResult_t result, ncclComm_t communicator, const std::string& call) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const char* const detail = nccl.get_last_error(communicator);
  std::string text = fmt::format("{}: {}", call, nccl.get_error_string(result));
  if (detail != nullptr && *detail != '\0') text += fmt::format(" ({})", detail);
  throw Error(code_of(result), text);
}

void Watchdog::look(ncclComm_t communicator, Deadline deadline, const std::string& what, unsigned turn) {
  constexpr unsigned kControlEvery = 16;  // Polling sockets costs more than polling an event.
  if (communicator != nullptr) check_nccl(*nccl_, state_of(*nccl_, communicator), communicator, what);
  check_interrupt();
  const bool late = steady_clock::now() >= deadline;
  if (late || turn % kControlEvery == 0) {
    if (const auto why = control_->aborted()) throw Error(ErrorCode::kPeerFailed, fmt::format("{}: {}", what, *why));
  }
  if (late) throw Error(ErrorCode::kTimeout, fmt::format("{} did not end by the deadline; a peer is silent", what));
}

void Watchdog::settle(ncclComm_t communicator, Deadline deadline, const std::string& what) {
  wait(
      [&] {
        const ncclResult_t state = state_of(*nccl_, communicator);
        check_nccl(*nccl_, state, communicator, what);
        return state == ncclSuccess;
      },
      nullptr, deadline, what);
}

ncclResult_t Watchdog::make_apart(DeviceApi& api, int device, const NewCommunicator& made,
                                  std::function<ncclResult_t()> make, Deadline deadline, const std::string& what) {
  enum class State { kRuns, kEnded, kLeft };
  struct Call {
    std::atomic<State> state{State::kRuns};
    ncclResult_t result = ncclSuccess;
  };
  const auto call = std::make_shared<Call>();
  std::thread([abort = nccl_->comm_abort, &api, device, made, make = std::move(make), call] {
    use_quietly(api, device);
    const ncclResult_t result = call->result = make();
    State before = State::kRuns;
    if (call->state.compare_exchange_strong(before, State::kEnded)) return;
    if (result != ncclSuccess && result != ncclInProgress) return;
    abort(communicator_in(made));
  }).detach();
  try {
    wait([&] { return call->state == State::kEnded; }, nullptr, deadline, what);
  } catch (...) {
    State before = State::kRuns;
    if (call->state.compare_exchange_strong(before, State::kLeft)) throw;
    // The call has just ended; the next wait reports the error again.
  }
  return call->result;
}

ncclComm_t communicator_in(const NewCommunicator& made) noexcept { return std::atomic_ref(*made).load(); }

bool settled(const NcclFunctions& nccl, ncclComm_t communicator) noexcept {
  return state_of(nccl, communicator) == ncclSuccess;
}

Deadline stop_deadline() noexcept { return steady_clock::now() + kStopPatience; }

std::future<void> begin_abort(const NcclFunctions& nccl, DeviceApi& api, int device, ncclComm_t communicator,
                              NewCommunicator made) noexcept {
  const auto abort_both = [abort = nccl.comm_abort, communicator, made = std::move(made)] {
    abort(communicator);
    const ncclComm_t left = made ? communicator_in(made) : nullptr;
    if (left != nullptr && left != communicator) abort(left);  // A growth writes the new communicator twice.
  };
  // Runs in a separate thread, because the abort may wait for stuck kernels and threads and has no deadline.
  try {
    const auto done = std::make_shared<std::promise<void>>();
    std::future<void> aborting = done->get_future();
    std::thread([abort_both, &api, device, done] {
      use_quietly(api, device);
      abort_both();
      done->set_value();
    }).detach();
    return aborting;
  } catch (...) {
    abort_both();
    return {};
  }
}

bool finish_abort(const std::future<void>& aborting, Deadline deadline) noexcept {
  return !aborting.valid() || aborting.wait_until(deadline) == std::future_status::ready;
}

bool begin_revoke(const NcclFunctions& nccl, ncclComm_t communicator) noexcept {
  if (nccl.comm_revoke == nullptr || nccl.comm_shrink == nullptr || !settled(nccl, communicator)) return false;
  const ncclResult_t result = nccl.comm_revoke(communicator, 0);
  return result == ncclSuccess || result == ncclInProgress;
}

bool finish_revoke(const NcclFunctions& nccl, ncclComm_t communicator, Deadline deadline) noexcept {
  return becomes_quiet(nccl, communicator, deadline);
}

bool destroy_communicator(const NcclFunctions& nccl, DeviceApi& api, int device, ncclComm_t communicator) noexcept {
  const ncclResult_t result = nccl.comm_finalize(communicator);
  if ((result == ncclSuccess || result == ncclInProgress) &&
      becomes_quiet(nccl, communicator, steady_clock::now() + kFinalizePatience) &&
      nccl.comm_destroy(communicator) == ncclSuccess) {
    return true;
  }
  return finish_abort(begin_abort(nccl, api, device, communicator), stop_deadline());
}

}  // namespace sparsecast

#endif
