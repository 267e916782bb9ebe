// SPDX-License-Identifier: Apache-2.0

// Transport over MPI.
//
//     broadcast:  opening (512 bytes: count and sizes) -> more sizes, if any -> messages, in batches
//     agree:      every rank sends its vote to the coordinator -> the coordinator sends the decision to every rank
//
// The records travel by MPI_Ibcast, votes and decisions by plain messages (mpi_voting.hpp). The coordinator is the
// source of the last broadcast: so the publisher itself takes the decision on which it commits.
//
// The coordinator closes the vote a little before its deadline, so that its decision ("rank 2 is silent") reaches ranks
// that started at the same time before theirs. After the decision is decided it is final: if it cannot be delivered to
// some rank, the call succeeds all the same, and the next one fails.
//
// Any failure breaks the transport: requests that are still running, their buffers and the communicator are left behind
// for good (see abandon), because neither can MPI take a collective back, nor will a silent peer ever complete it.

#include "sparsecast/mpi_transport.hpp"

#include "transport/mpi/mpi_operation.hpp"

#ifdef SPARSECAST_HAVE_MPI

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "transport/mpi/mpi_voting.hpp"

namespace sparsecast {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kSetupTime{60};
constexpr std::uint64_t kMaxPieceBytes = std::uint64_t{1} << 30;

struct BroadcastOperation final : MpiOperation {
  Opening opening{};
  std::vector<std::uint64_t> sizes;
  std::vector<Bytes> records;
  std::vector<Bytes> joined;  ///< One buffer per message of the batch; empty for a message of one piece.
};

struct CommunicatorOperation final : MpiOperation {
  MPI_Comm communicator = MPI_COMM_NULL;
};

class MpiTransport final : public Transport {
 public:
  MpiTransport(MPI_Comm parent, const WireLimits& limits);
  ~MpiTransport() override;
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  void broadcast(std::vector<Bytes>& records, int source, Deadline deadline) override;
  int agree(int status, Deadline deadline) override;

 private:
  template <class Operation, class Body>
  auto guard(const char* phase, std::unique_ptr<Operation> operation, const Body& body);
  void require_usable(const char* phase) const;
  void ibcast(MpiOperation& operation, void* data, std::uint64_t bytes, int source);
  void wait_broadcast(BroadcastOperation& operation, int source, Deadline deadline, Pace pace, const std::string& what);
  void exchange_sizes(BroadcastOperation& operation, int source, Deadline deadline);
  void exchange_records(BroadcastOperation& operation, int source, Deadline deadline);
  void exchange_batch(BroadcastOperation& operation, const std::vector<Message>& batch, int source, Deadline deadline);

  MPI_Comm communicator_ = MPI_COMM_NULL;
  WireLimits limits_;
  int rank_ = 0;
  int size_ = 1;
  int coordinator_ = 0;
  MpiVoting voting_;
  std::optional<std::string> broken_;
};

MpiTransport::MpiTransport(MPI_Comm parent, const WireLimits& limits) : limits_(limits) {
  if (limits_.piece_bytes == 0 || limits_.piece_bytes > kMaxPieceBytes) {
    throw Error(ErrorCode::kUsage,
                fmt::format("pieces of {} bytes; 1 to {} are possible", limits_.piece_bytes, kMaxPieceBytes),
                "mpi channel");
  }
  auto operation = std::make_unique<CommunicatorOperation>();
  check_mpi(MPI_Comm_idup(parent, &operation->communicator, operation->add()), "MPI_Comm_idup");
  if (!wait_all(*operation, steady_clock::now() + kSetupTime, Pace::kIdle)) {
    abandon(std::move(operation));
    throw Error(ErrorCode::kTimeout,
                fmt::format("not every rank has opened the channel within {} s", kSetupTime.count()), "mpi channel");
  }
  communicator_ = operation->communicator;
  check_mpi(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(communicator_, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(communicator_, &size_), "MPI_Comm_size");
  voting_.open(communicator_, rank_, size_);
}

MpiTransport::~MpiTransport() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  // Freeing a communicator with requests on it may wait for them: a broken transport keeps it.
  if (!broken_ && finalized == 0) MPI_Comm_free(&communicator_);
}

void MpiTransport::require_usable(const char* phase) const {
  if (!broken_) return;
  throw Error(ErrorCode::kPeerFailed, fmt::format("the channel is broken since an earlier failure ({})", *broken_),
              fmt::format("mpi channel, rank {} of {}: {}", rank_, size_, phase));
}

/// Runs `body` on the operation; an exception from it breaks the transport, and the operation's memory stays for MPI.
template <class Operation, class Body>
auto MpiTransport::guard(const char* phase, std::unique_ptr<Operation> operation, const Body& body) {
  try {
    return body(*operation);
  } catch (const Error& error) {
    broken_ = error.message();
    abandon(std::move(operation));
    throw error.within(fmt::format("mpi channel, rank {} of {}: {}", rank_, size_, phase));
  } catch (const std::exception& error) {
    broken_ = error.what();
    abandon(std::move(operation));
    throw;
  }
}

void MpiTransport::ibcast(MpiOperation& operation, void* data, std::uint64_t bytes, int source) {
  check_mpi(MPI_Ibcast(data, static_cast<int>(bytes), MPI_BYTE, source, communicator_, operation.add()), "MPI_Ibcast");
}

void MpiTransport::wait_broadcast(BroadcastOperation& operation, int source, Deadline deadline, Pace pace,
                                  const std::string& what) {
  if (rank_ != source) {
    if (wait_all(operation, deadline, pace)) return;
    throw Error(ErrorCode::kTimeout, fmt::format("waited for {} from rank {} until the deadline", what, source));
  }
  if (wait_all(operation, close_of_vote(deadline), pace)) return;
  // A collective does not say who is missing, but whoever has all records has sent its vote already.
  const std::vector<int> silent = voting_.silent_ranks();
  voting_.announce_silence(silent, deadline);
  throw Error(ErrorCode::kTimeout, fmt::format("{} not taken until the deadline by {}{}", what,
                                               silent.size() > 1 ? "at least one of " : "", name_ranks(silent)));
}

/// Broadcasts the sizes. The source does not wait here: it knows the table, and a late receiver must not hold up the
/// others.
void MpiTransport::exchange_sizes(BroadcastOperation& operation, int source, Deadline deadline) {
  if (rank_ == source) {
    for (const Bytes& record : operation.records) operation.sizes.push_back(record.size());
    operation.opening = pack_opening(operation.sizes);
  }
  ibcast(operation, operation.opening.data(), sizeof(Opening), source);
  if (rank_ != source) {
    wait_broadcast(operation, source, deadline, Pace::kIdle, "the size table");
    operation.sizes = parse_opening(operation.opening, limits_);
  }
  if (operation.sizes.size() > kOpeningSizes) {
    const auto rest = std::as_writable_bytes(std::span(operation.sizes).subspan(kOpeningSizes));
    for (std::uint64_t begin = 0; begin < rest.size(); begin += limits_.piece_bytes) {
      ibcast(operation, rest.data() + begin, std::min<std::uint64_t>(limits_.piece_bytes, rest.size() - begin), source);
    }
    if (rank_ != source) wait_broadcast(operation, source, deadline, Pace::kMoving, "the size table");
  }
  if (rank_ != source) {
    check_sizes(operation.opening, operation.sizes);
    operation.records.resize(operation.sizes.size());
  }
}

void MpiTransport::exchange_batch(BroadcastOperation& operation, const std::vector<Message>& batch, int source,
                                  Deadline deadline) {
  // All memory first: a record that grows later would move under a running request.
  operation.joined.assign(batch.size(), {});
  std::uint64_t bytes = 0;
  for (std::size_t m = 0; m < batch.size(); ++m) {
    bytes += batch[m].bytes;
    if (batch[m].pieces.size() > 1) operation.joined[m].resize(batch[m].bytes);
    if (rank_ == source) continue;
    for (const RecordPiece& piece : batch[m].pieces) operation.records[piece.record].resize(piece.offset + piece.bytes);
  }
  const auto copy_joined = [&](bool out) {
    for (std::size_t m = 0; m < batch.size(); ++m) {
      std::byte* at = operation.joined[m].data();
      if (operation.joined[m].empty()) continue;
      for (const RecordPiece& piece : batch[m].pieces) {
        std::byte* const record = operation.records[piece.record].data() + piece.offset;
        std::memcpy(out ? record : at, out ? at : record, piece.bytes);
        at += piece.bytes;
      }
    }
  };
  if (rank_ == source) copy_joined(false);
  for (std::size_t m = 0; m < batch.size(); ++m) {
    const RecordPiece& first = batch[m].pieces.front();
    std::byte* const direct = operation.records[first.record].data() + first.offset;
    ibcast(operation, operation.joined[m].empty() ? direct : operation.joined[m].data(), batch[m].bytes, source);
  }
  wait_broadcast(operation, source, deadline, Pace::kMoving,
                 fmt::format("{} bytes of records {} to {}", bytes, batch.front().pieces.front().record,
                             batch.back().pieces.back().record));
  if (rank_ != source) copy_joined(true);
}

void MpiTransport::exchange_records(BroadcastOperation& operation, int source, Deadline deadline) {
  MessageCutter cutter(operation.sizes, limits_.piece_bytes);
  for (auto batch = cutter.next_batch(); !batch.empty(); batch = cutter.next_batch()) {
    exchange_batch(operation, batch, source, deadline);
  }
  if (rank_ == source) wait_broadcast(operation, source, deadline, Pace::kIdle, "the size table");
}

void MpiTransport::broadcast(std::vector<Bytes>& records, int source, Deadline deadline) {
  require_usable("broadcast");
  if (source < 0 || source >= size_) {
    throw Error(ErrorCode::kUsage, fmt::format("source {} of {} ranks", source, size_), "mpi channel: broadcast");
  }
  coordinator_ = source;
  if (size_ == 1) return;
  auto operation = std::make_unique<BroadcastOperation>();
  // The operation owns what it sends, because a failure leaves requests behind that go on reading it.
  if (rank_ == source) operation->records.swap(records);
  guard("broadcast", std::move(operation), [&](BroadcastOperation& running) {
    exchange_sizes(running, source, deadline);
    exchange_records(running, source, deadline);
    records.swap(running.records);
  });
}

int MpiTransport::agree(int status, Deadline deadline) {
  require_usable("agree");
  if (size_ == 1) return status;
  const int worst = guard("agree", std::make_unique<VoteOperation>(), [&](VoteOperation& operation) {
    return voting_.agree(operation, status, coordinator_, deadline);
  });
  broken_ = voting_.undelivered();
  return worst;
}

}  // namespace

bool mpi_available() noexcept { return true; }

std::unique_ptr<Transport> make_mpi_transport(const void* communicator, const WireLimits& limits) {
  require_running_mpi("mpi channel");
  return std::make_unique<MpiTransport>(
      communicator == nullptr ? MPI_COMM_WORLD : *static_cast<const MPI_Comm*>(communicator), limits);
}

}  // namespace sparsecast

#else

namespace sparsecast {

bool mpi_available() noexcept { return false; }

std::unique_ptr<Transport> make_mpi_transport(const void*, const WireLimits&) {
  throw Error(ErrorCode::kUnsupported, "this build of the library has no MPI transport");
}

}  // namespace sparsecast

#endif

namespace sparsecast {

std::unique_ptr<Transport> make_mpi_transport(const void* communicator) {
  return make_mpi_transport(communicator, WireLimits{});
}

}  // namespace sparsecast
