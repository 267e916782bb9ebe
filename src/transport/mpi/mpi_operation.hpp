// SPDX-License-Identifier: Apache-2.0
#pragma once

// Non-blocking MPI operations with a deadline. Included only in builds with MPI.

#include <mpi.h>

#include <functional>
#include <memory>
#include <vector>

#include "core/process_mark.hpp"
#include "sparsecast/transport.hpp"
#include "transport/message_plan.hpp"

namespace sparsecast {

/// MPI requests in flight, with all memory that they use. A derived type owns the buffers.
struct MpiOperation {
  MpiOperation() = default;
  virtual ~MpiOperation() = default;
  MpiOperation(const MpiOperation&) = delete;
  MpiOperation& operator=(const MpiOperation&) = delete;

  /// Appends an empty request, and returns a pointer to it for an MPI call. The pointer is valid until the next call of
  /// add().
  MPI_Request* add() {
    requests.push_back(MPI_REQUEST_NULL);
    return &requests.back();
  }
  std::vector<MPI_Request> requests;
  MpiOperation* next_abandoned = nullptr;
};

/// Reason why a rank waits, which decides how it polls. A waiting rank first polls without pauses, then yields its core
/// between polls, because there are often more ranks than cores, and then sleeps between polls.
enum class Pace {
  kMoving,  ///< Data is being transferred, which MPI does only while it is polled.
  kIdle,    ///< A peer is computing and should get the core.
};

/// Polls until all requests are complete or the deadline has passed; polls at least once. Returns true when all
/// requests are complete, and false at the deadline. Throws Error{kPeerFailed} if MPI reports an error. Calls
/// look_up(), if given, between polls, and throws what it throws.
bool wait_all(MpiOperation& operation, Deadline deadline, Pace pace, const std::function<void()>& look_up = {});
/// Polls request number `index` of the operation once, and returns true when the request is complete. Throws
/// Error{kPeerFailed} if MPI reports an error.
bool test_one(MpiOperation& operation, std::size_t index);

/// Makes the pauses between the polls of one wait, which grow with the time waited.
class Backoff {
 public:
  explicit Backoff(Pace pace);
  void pause();

 private:
  std::chrono::steady_clock::time_point start_;
  std::chrono::microseconds yield_for_;
  std::chrono::microseconds sleep_{0};
};

/// Throws Error{kUsage} before MPI_Init and after MPI_Finalize. `who` names the caller in the error.
void require_running_mpi(const char* who);

/// Throws Error{kPeerFailed} with MPI's error text unless `code`, the result of the MPI function `call`, is
/// MPI_SUCCESS.
void check_mpi(int code, const char* call);

/// Keeps an operation alive until the process ends, because its requests may still be running.
void abandon(std::unique_ptr<MpiOperation> operation) noexcept;

/// A duplicated MPI communicator. A control channel, the channels that split() makes from it, and the transport over it
/// share the communicator; each control channel uses a different tag.
class MpiCommunicator {
 public:
  /// Duplicates `parent`, collectively: all of its ranks must call it. Throws Error{kTimeout | kPeerFailed}.
  MpiCommunicator(MPI_Comm parent, Deadline deadline);
  ~MpiCommunicator();
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  MPI_Comm handle() const noexcept { return communicator_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  /// Makes the destructor leave the communicator open, because operations on it are still running.
  void leave_behind() noexcept { left_ = true; }

  static constexpr int kTransportTag = 0;
  /// Lowest tag that this rank has not used yet. A channel that split() makes gets the largest next_tag of its ranks.
  int next_tag = 1;

 private:
  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  bool left_ = false;
  ProcessMark process_;
};

/// Returns the communicator of an MPI control channel that has all ranks of the communicator; null for any other
/// control channel.
std::shared_ptr<MpiCommunicator> communicator_of(const ControlChannel& control);

/// Creates an MPI transport over `control` that has these limits in place of the defaults. `limits.piece_bytes` must be
/// the same on every rank.
std::unique_ptr<Transport> make_mpi_transport(std::shared_ptr<ControlChannel> control, const WireLimits& limits);

}  // namespace sparsecast
