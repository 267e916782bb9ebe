// SPDX-License-Identifier: Apache-2.0
#pragma once

// Non-blocking MPI operations with a deadline. Included only where MPI is there.

#include <mpi.h>

#include <functional>
#include <memory>
#include <vector>

#include "core/process_mark.hpp"
#include "sparsecast/transport.hpp"
#include "transport/message_plan.hpp"

namespace sparsecast {

/// Requests in flight together with all memory that they use: a derived type holds the buffers.
struct MpiOperation {
  MpiOperation() = default;
  virtual ~MpiOperation() = default;
  MpiOperation(const MpiOperation&) = delete;
  MpiOperation& operator=(const MpiOperation&) = delete;

  /// Appends a request and returns it; the pointer is valid until the next call.
  MPI_Request* add() {
    requests.push_back(MPI_REQUEST_NULL);
    return &requests.back();
  }
  std::vector<MPI_Request> requests;
  MpiOperation* next_abandoned = nullptr;
};

/// Way of waiting. Ranks often outnumber the cores, so a waiting rank yields; but it polls at first.
enum class Pace {
  kMoving,  ///< Bytes are on their way, and MPI moves them only while it is polled.
  kIdle,    ///< A peer is at work: leave it the core.
};

/// Polls until all requests are complete or the deadline has passed; polls at least once. True when all are complete.
/// Throws Error{kPeerFailed} when MPI reports an error, and what `look_up` throws, which is called between two polls.
bool wait_all(MpiOperation& operation, Deadline deadline, Pace pace, const std::function<void()>& look_up = {});
/// Polls requests[index] once; true when it is complete.
bool test_one(MpiOperation& operation, std::size_t index);

/// Pause between two polls, which grows with the time waited.
class Backoff {
 public:
  explicit Backoff(Pace pace);
  void pause();

 private:
  std::chrono::steady_clock::time_point start_;
  std::chrono::microseconds yield_for_;
  std::chrono::microseconds sleep_{0};
};

/// Throws Error{kUsage} before MPI_Init and after MPI_Finalize.
void require_running_mpi(const char* who);

/// Throws Error{kPeerFailed} with MPI's own words unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* call);

/// Keeps an operation whose requests may still be running for the life of the process.
void abandon(std::unique_ptr<MpiOperation> operation) noexcept;

/// A communicator of our own, shared by a control channel, its parts, and the transport over it. Each control channel
/// has a tag of its own.
class MpiCommunicator {
 public:
  /// Collective over `parent`. Throws Error{kTimeout | kPeerFailed}.
  MpiCommunicator(MPI_Comm parent, Deadline deadline);
  ~MpiCommunicator();
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  MPI_Comm handle() const noexcept { return communicator_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  /// Keeps the communicator from being freed, because operations on it are still running.
  void leave_behind() noexcept { left_ = true; }

  static constexpr int kTransportTag = 0;
  int next_tag = 1;  ///< The first that this rank has not used; a new part takes the largest of its ranks'.

 private:
  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  bool left_ = false;
  ProcessMark process_;
};

/// Returns the communicator of a control channel over all of its ranks; null for any other channel.
std::shared_ptr<MpiCommunicator> communicator_of(const ControlChannel& control);

/// Creates an MPI transport with other limits than the default; every rank must give the same `piece_bytes`.
std::unique_ptr<Transport> make_mpi_transport(std::shared_ptr<ControlChannel> control, const WireLimits& limits);

}  // namespace sparsecast
