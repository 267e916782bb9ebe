// SPDX-License-Identifier: Apache-2.0
#ifdef SPARSECAST_HAVE_MPI

#include "transport/mpi/mpi_link.hpp"

#include <fmt/format.h>

#include <climits>
#include <cstring>

namespace sparsecast {
namespace {

using std::chrono::steady_clock;

/// Both ends are in lockstep: a peer is never further ahead than a message or two.
constexpr std::size_t kMostWaiting = 8;

struct MpiMessageHeader {
  std::uint32_t type = 0;
  std::uint32_t reserved = 0;
};

struct LinkOperation final : MpiOperation {
  MPI_Comm communicator = MPI_COMM_NULL;
};

}  // namespace

struct MpiLink::Arrival final : MpiOperation {
  Bytes message;
};

struct MpiLink::Departure final : MpiOperation {
  Bytes message;
};

MpiCommunicator::MpiCommunicator(MPI_Comm parent, Deadline deadline) {
  auto operation = std::make_unique<LinkOperation>();
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
  if (!left_ && finalized == 0) MPI_Comm_free(&communicator_);
}

MpiLink::MpiLink(std::shared_ptr<MpiCommunicator> communicator, int peer, int tag, std::string name,
                 std::uint64_t max_body_bytes)
    : communicator_(std::move(communicator)),
      peer_(peer),
      tag_(tag),
      name_(std::move(name)),
      max_body_bytes_(max_body_bytes) {}

MpiLink::~MpiLink() {
  if (!arrival_) return;
  communicator_->leave_behind();
  abandon(std::move(arrival_));
}

void MpiLink::send(MessageType type, std::span<const std::byte> body, Deadline deadline) {
  const MpiMessageHeader header{static_cast<std::uint32_t>(type), 0};
  if (body.size() > static_cast<std::size_t>(INT_MAX) - sizeof(header)) {
    throw Error(ErrorCode::kUsage, fmt::format("a message of {} bytes is too long for MPI", body.size()), name_);
  }
  auto departure = std::make_unique<Departure>();
  departure->message.resize(sizeof(header) + body.size());
  std::memcpy(departure->message.data(), &header, sizeof(header));
  if (!body.empty()) std::memcpy(departure->message.data() + sizeof(header), body.data(), body.size());
  try {
    check_mpi(MPI_Isend(departure->message.data(), static_cast<int>(departure->message.size()), MPI_BYTE, peer_, tag_,
                        communicator_->handle(), departure->add()),
              "MPI_Isend");
    if (wait_all(*departure, deadline, Pace::kMoving, [this] { check_cancelled(); })) return;
  } catch (const Error& error) {
    communicator_->leave_behind();
    abandon(std::move(departure));
    throw error.within(name_);
  }
  communicator_->leave_behind();
  abandon(std::move(departure));
  throw Error(ErrorCode::kTimeout, fmt::format("takes no {} until the deadline", to_string(type)), name_);
}

void MpiLink::fill() {
  while (waiting_.size() < kMostWaiting) {
    if (!arrival_) {
      int found = 0;
      int bytes = 0;
      MPI_Message matched = MPI_MESSAGE_NULL;
      MPI_Status status;
      check_mpi(MPI_Improbe(peer_, tag_, communicator_->handle(), &found, &matched, &status), "MPI_Improbe");
      if (found == 0) return;
      check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
      const auto length = static_cast<std::uint64_t>(bytes);
      if (bytes < static_cast<int>(sizeof(MpiMessageHeader)) || length - sizeof(MpiMessageHeader) > max_body_bytes_) {
        communicator_->leave_behind();  // With a message that nobody takes.
        throw Error(ErrorCode::kCorrupt,
                    fmt::format("sent a message of {} bytes; at most {} are taken", bytes, max_body_bytes_), name_);
      }
      arrival_ = std::make_unique<Arrival>();
      arrival_->message.resize(static_cast<std::size_t>(length));
      check_mpi(MPI_Imrecv(arrival_->message.data(), bytes, MPI_BYTE, &matched, arrival_->add()), "MPI_Imrecv");
    }
    if (!test_one(*arrival_, 0)) return;
    MpiMessageHeader header;
    ControlMessage message;
    std::memcpy(&header, arrival_->message.data(), sizeof(header));
    message.type = static_cast<MessageType>(header.type);
    message.body.assign(arrival_->message.begin() + sizeof(header), arrival_->message.end());
    arrival_.reset();
    waiting_.push_back(std::move(message));
  }
}

ControlMessage MpiLink::receive(Deadline deadline, std::span<const std::unique_ptr<Link>> others) {
  Backoff backoff(Pace::kIdle);
  Deadline look = steady_clock::now() + kParentCheckInterval;
  for (;;) {
    check_cancelled();
    if (waiting_.empty()) fill();
    if (!waiting_.empty()) {
      ControlMessage message = std::move(waiting_.front());
      waiting_.pop_front();
      return message;
    }
    for (const std::unique_ptr<Link>& other : others) {
      auto* const link = static_cast<MpiLink*>(other.get());
      if (link == nullptr || link == this) continue;
      link->fill();
      throw_if_aborted(link->waiting_, link->name_);
    }
    const auto now = steady_clock::now();
    if (now >= deadline) throw Error(ErrorCode::kTimeout, "silent until the deadline", name_);
    if (now >= look) {
      check_parent();
      look = now + kParentCheckInterval;
    }
    backoff.pause();
  }
}

std::optional<std::string> MpiLink::given_up() {
  try {
    fill();
  } catch (const Error& error) {
    return error.what();
  }
  if (const ControlMessage* abort = find_abort(waiting_)) {
    return fmt::format("{} gave up: {}", name_, abort_of(*abort).message());
  }
  return std::nullopt;
}

}  // namespace sparsecast

#endif
