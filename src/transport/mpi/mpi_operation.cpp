// SPDX-License-Identifier: Apache-2.0
#ifdef SPARSECAST_HAVE_MPI

#include "transport/mpi/mpi_operation.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <string_view>
#include <thread>

namespace sparsecast {

using std::chrono::microseconds;
using std::chrono::steady_clock;

Backoff::Backoff(Pace pace)
    : start_(steady_clock::now()), yield_for_(pace == Pace::kMoving ? microseconds(2000000) : microseconds(500)) {}

void Backoff::pause() {
  constexpr microseconds kSpin{50};
  constexpr microseconds kShortest{20};
  constexpr microseconds kLongest{200};
  const auto waited = steady_clock::now() - start_;
  if (waited < kSpin) return;
  if (waited < yield_for_) {
    sched_yield();
    return;
  }
  sleep_ = std::clamp(sleep_ * 2, kShortest, kLongest);
  std::this_thread::sleep_for(sleep_);
}

namespace {

struct CommunicatorOperation final : MpiOperation {
  MPI_Comm communicator = MPI_COMM_NULL;
};

}  // namespace

MpiCommunicator::MpiCommunicator(MPI_Comm parent, Deadline deadline) {
  auto operation = std::make_unique<CommunicatorOperation>();
  check_mpi(MPI_Comm_idup(parent, &operation->communicator, operation->add()), "MPI_Comm_idup");
  if (!wait_all(*operation, deadline, Pace::kIdle)) {
    abandon(std::move(operation));
    throw Error(ErrorCode::kTimeout, "not every rank has opened the channel until the deadline");
  }
  communicator_ = operation->communicator;
  check_mpi(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(communicator_, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(communicator_, &size_), "MPI_Comm_size");
}

MpiCommunicator::~MpiCommunicator() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!left_ && finalized == 0 && process_.is_here()) MPI_Comm_free(&communicator_);
}

void require_running_mpi(const char* who) {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized == 0 || finalized != 0) {
    throw Error(ErrorCode::kUsage, initialized == 0 ? "MPI is not initialised" : "MPI is finalised", who);
  }
}

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(ErrorCode::kPeerFailed,
              fmt::format("{}: {}", call, std::string_view(text, static_cast<std::size_t>(length))));
}

bool wait_all(MpiOperation& operation, Deadline deadline, Pace pace, const std::function<void()>& look_up) {
  Backoff backoff(pace);
  for (;;) {
    int complete = 0;
    check_mpi(MPI_Testall(static_cast<int>(operation.requests.size()), operation.requests.data(), &complete,
                          MPI_STATUSES_IGNORE),
              "MPI_Testall");
    if (complete != 0) {
      operation.requests.clear();
      return true;
    }
    if (steady_clock::now() >= deadline) return false;
    if (look_up) look_up();
    backoff.pause();
  }
}

bool test_one(MpiOperation& operation, std::size_t index) {
  int complete = 0;
  check_mpi(MPI_Test(&operation.requests[index], &complete, MPI_STATUS_IGNORE), "MPI_Test");
  return complete != 0;
}

void abandon(std::unique_ptr<MpiOperation> operation) noexcept {
  // A collective cannot be cancelled, and MPI continues it whenever it is polled, even for another transport. So its
  // memory must stay valid, and it is never known when the last peer has finished with it. The operations are kept in a
  // linked list, which needs no allocation, from a static pointer, so that leak checkers see that this is intended.
  static std::atomic<MpiOperation*> kept{nullptr};
  MpiOperation* const last = operation.release();
  last->next_abandoned = kept.load();
  while (!kept.compare_exchange_weak(last->next_abandoned, last)) {
  }
}

}  // namespace sparsecast

#endif
