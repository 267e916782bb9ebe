// SPDX-License-Identifier: Apache-2.0

// Transport over MPI.
//
//     opening (512 bytes: count and sizes) -> more sizes, if any -> messages, in batches
//     every receiver -> source: taken
//
// The records travel by MPI_Ibcast, on the communicator of the control channel. A collective does not tell which rank
// is missing. So each receiver sends the source a point-to-point message when it has all records, and the source can
// name silent ranks. The source stops waiting a little before its deadline, so that its error reaches ranks that
// started at the same time before their deadline.
//
// Any failure breaks the transport and its control channel: requests that are still running, their buffers and the
// communicator are leaked (see abandon), because MPI cannot cancel a collective and a silent peer will never complete
// it.

#include "sparsecast/mpi_transport.hpp"

#ifdef SPARSECAST_HAVE_MPI

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "core/interrupt.hpp"
#include "transport/control/star_group.hpp"
#include "transport/mpi/mpi_operation.hpp"

namespace sparsecast {
namespace {

using std::chrono::steady_clock;

constexpr std::uint64_t kMaxPieceBytes = std::uint64_t{1} << 30;
/// Interval at which a rank that waits in MPI checks whether another rank has given up.
constexpr std::chrono::milliseconds kLookInterval{20};

struct BroadcastOperation final : MpiOperation {
  Opening opening{};
  std::vector<std::uint64_t> sizes;
  std::vector<Bytes> records;
  std::vector<Bytes> joined;  ///< One buffer per message of the batch; empty for a message of one piece.
};

class MpiTransport final : public Transport {
 public:
  MpiTransport(std::shared_ptr<ControlChannel> control, const WireLimits& limits);
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  ControlChannel& control() const noexcept override { return *control_; }
  void broadcast(std::vector<Bytes>& records, int source, Deadline deadline) override;

 private:
  void run(BroadcastOperation& operation, int source, Deadline deadline);
  void ibcast(MpiOperation& operation, void* data, std::uint64_t bytes, int source);
  bool wait(MpiOperation& operation, Deadline deadline, Pace pace);
  void wait_broadcast(BroadcastOperation& operation, int source, Deadline deadline, Pace pace, const std::string& what);
  void exchange_sizes(BroadcastOperation& operation, int source, Deadline deadline);
  void exchange_records(BroadcastOperation& operation, int source, Deadline deadline);
  void exchange_batch(BroadcastOperation& operation, const std::vector<Message>& batch, int source, Deadline deadline);
  void confirm(BroadcastOperation& operation, int source, Deadline deadline);

  std::shared_ptr<ControlChannel> control_;
  std::shared_ptr<MpiCommunicator> communicator_;
  WireLimits limits_;
  std::optional<std::string> broken_;
};

MpiTransport::MpiTransport(std::shared_ptr<ControlChannel> control, const WireLimits& limits)
    : control_(std::move(control)), communicator_(communicator_of(*control_)), limits_(limits) {
  if (!communicator_) throw Error(ErrorCode::kUsage, "its control channel is not one over MPI", "mpi channel");
  if (limits_.piece_bytes == 0 || limits_.piece_bytes > kMaxPieceBytes) {
    throw Error(ErrorCode::kUsage,
                fmt::format("pieces of {} bytes; 1 to {} are possible", limits_.piece_bytes, kMaxPieceBytes),
                "mpi channel");
  }
}

void MpiTransport::ibcast(MpiOperation& operation, void* data, std::uint64_t bytes, int source) {
  check_mpi(MPI_Ibcast(data, static_cast<int>(bytes), MPI_BYTE, source, communicator_->handle(), operation.add()),
            "MPI_Ibcast");
}

/// Waits like wait_all(). Also throws Error{kPeerFailed} if another rank gives up meanwhile.
bool MpiTransport::wait(MpiOperation& operation, Deadline deadline, Pace pace) {
  Deadline look = steady_clock::now() + kLookInterval;
  return wait_all(operation, deadline, pace, [&] {
    if (steady_clock::now() < look) return;
    check_interrupt();
    if (const auto why = control_->aborted()) throw Error(ErrorCode::kPeerFailed, *why);
    look = steady_clock::now() + kLookInterval;
  });
}

[[noreturn]] void fail_untaken(const std::string& what, const std::vector<int>& silent) {
  throw Error(ErrorCode::kTimeout,
              fmt::format("{} not taken until the deadline by {} {}", what,
                          silent.size() > 1 ? "at least one of ranks" : "rank", fmt::join(silent, ", ")));
}

void MpiTransport::wait_broadcast(BroadcastOperation& operation, int source, Deadline deadline, Pace pace,
                                  const std::string& what) {
  if (wait(operation, rank() == source ? close_of_step(deadline) : deadline, pace)) return;
  if (rank() != source) {
    throw Error(ErrorCode::kTimeout, fmt::format("waited for {} from rank {} until the deadline", what, source));
  }
  // Ranks that have all records have already told the source; the others are silent.
  std::vector<int> silent;
  for (int r = 0; r < size(); ++r) {
    int taken = 0;
    if (r == rank()) continue;
    check_mpi(MPI_Iprobe(r, MpiCommunicator::kTransportTag, communicator_->handle(), &taken, MPI_STATUS_IGNORE),
              "MPI_Iprobe");
    if (taken == 0) silent.push_back(r);
  }
  fail_untaken(what, silent);
}

/// Tells the source that this rank has all records. On the source, waits until every rank has done so.
void MpiTransport::confirm(BroadcastOperation& operation, int source, Deadline deadline) {
  constexpr int kTag = MpiCommunicator::kTransportTag;
  if (rank() != source) {
    check_mpi(MPI_Isend(nullptr, 0, MPI_BYTE, source, kTag, communicator_->handle(), operation.add()), "MPI_Isend");
    wait_broadcast(operation, source, deadline, Pace::kIdle, "a word");
    return;
  }
  std::vector<int> others;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    others.push_back(r);
    check_mpi(MPI_Irecv(nullptr, 0, MPI_BYTE, r, kTag, communicator_->handle(), operation.add()), "MPI_Irecv");
  }
  if (wait(operation, close_of_step(deadline), Pace::kIdle)) return;
  std::vector<int> silent;
  for (std::size_t i = 0; i < others.size(); ++i) {
    if (!test_one(operation, i)) silent.push_back(others[i]);
  }
  if (!silent.empty()) fail_untaken("the records", silent);
}

/// Broadcasts the sizes. The source does not wait here, because it knows the sizes, and a late receiver must not delay
/// the others.
void MpiTransport::exchange_sizes(BroadcastOperation& operation, int source, Deadline deadline) {
  if (rank() == source) {
    for (const Bytes& record : operation.records) operation.sizes.push_back(record.size());
    operation.opening = pack_opening(operation.sizes);
  }
  ibcast(operation, operation.opening.data(), sizeof(Opening), source);
  if (rank() != source) {
    wait_broadcast(operation, source, deadline, Pace::kIdle, "the size table");
    operation.sizes = parse_opening(operation.opening, limits_);
  }
  if (operation.sizes.size() > kOpeningSizes) {
    const auto rest = std::as_writable_bytes(std::span(operation.sizes).subspan(kOpeningSizes));
    for (std::uint64_t begin = 0; begin < rest.size(); begin += limits_.piece_bytes) {
      ibcast(operation, rest.data() + begin, std::min<std::uint64_t>(limits_.piece_bytes, rest.size() - begin), source);
    }
    if (rank() != source) wait_broadcast(operation, source, deadline, Pace::kMoving, "the size table");
  }
  if (rank() != source) {
    check_sizes(operation.opening, operation.sizes);
    operation.records.resize(operation.sizes.size());
  }
}

void MpiTransport::exchange_batch(BroadcastOperation& operation, const std::vector<Message>& batch, int source,
                                  Deadline deadline) {
  // All memory is allocated first, because growing a record would move the buffer of a running request.
  operation.joined.assign(batch.size(), {});
  std::uint64_t bytes = 0;
  for (std::size_t m = 0; m < batch.size(); ++m) {
    bytes += batch[m].bytes;
    if (batch[m].pieces.size() > 1) operation.joined[m].resize(batch[m].bytes);
    if (rank() == source) continue;
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
  if (rank() == source) copy_joined(false);
  for (std::size_t m = 0; m < batch.size(); ++m) {
    const RecordPiece& first = batch[m].pieces.front();
    std::byte* const direct = operation.records[first.record].data() + first.offset;
    ibcast(operation, operation.joined[m].empty() ? direct : operation.joined[m].data(), batch[m].bytes, source);
  }
  wait_broadcast(operation, source, deadline, Pace::kMoving,
                 fmt::format("{} bytes of records {} to {}", bytes, batch.front().pieces.front().record,
                             batch.back().pieces.back().record));
  if (rank() != source) copy_joined(true);
}

void MpiTransport::exchange_records(BroadcastOperation& operation, int source, Deadline deadline) {
  MessageCutter cutter(operation.sizes, limits_.piece_bytes);
  for (auto batch = cutter.next_batch(); !batch.empty(); batch = cutter.next_batch()) {
    exchange_batch(operation, batch, source, deadline);
  }
  if (rank() == source) wait_broadcast(operation, source, deadline, Pace::kIdle, "the size table");
}

void MpiTransport::run(BroadcastOperation& operation, int source, Deadline deadline) {
  if (const auto why = broken_ ? broken_ : control_->aborted()) {
    throw Error(ErrorCode::kPeerFailed, fmt::format("the channel is broken since an earlier failure ({})", *why));
  }
  exchange_sizes(operation, source, deadline);
  exchange_records(operation, source, deadline);
  confirm(operation, source, deadline);
}

void MpiTransport::broadcast(std::vector<Bytes>& records, int source, Deadline deadline) {
  if (source < 0 || source >= size()) {
    throw Error(ErrorCode::kUsage, fmt::format("source {} of {} ranks", source, size()), "mpi channel: broadcast");
  }
  if (size() == 1) return;
  auto operation = std::make_unique<BroadcastOperation>();
  // The operation owns the records that it sends, because after a failure, abandoned requests still read them.
  if (rank() == source) operation->records.swap(records);
  try {
    run(*operation, source, deadline);
    records.swap(operation->records);
  } catch (const std::exception& error) {
    if (!broken_) broken_ = error.what();
    communicator_->leave_behind();
    abandon(std::move(operation));
    control_->abort(error.what());
    control_->aborted();  // If only this thread may call MPI, it tells the other ranks now.
    const auto* const own = dynamic_cast<const Error*>(&error);
    if (own == nullptr) throw;
    throw own->within(fmt::format("mpi channel, rank {} of {}: broadcast", rank(), size()));
  }
}

}  // namespace

bool mpi_available() noexcept { return true; }

std::unique_ptr<Transport> make_mpi_transport(std::shared_ptr<ControlChannel> control, const WireLimits& limits) {
  return std::make_unique<MpiTransport>(std::move(control), limits);
}

std::unique_ptr<Transport> make_mpi_transport(std::shared_ptr<ControlChannel> control) {
  return make_mpi_transport(std::move(control), WireLimits{});
}

std::unique_ptr<Transport> make_mpi_transport(const void* communicator) {
  return make_mpi_transport(make_mpi_control_channel(communicator));
}

}  // namespace sparsecast

#else

namespace sparsecast {

bool mpi_available() noexcept { return false; }

std::unique_ptr<Transport> make_mpi_transport(const void*) {
  throw Error(ErrorCode::kUnsupported, "this build of the library has no MPI transport");
}

std::unique_ptr<Transport> make_mpi_transport(std::shared_ptr<ControlChannel>) { return make_mpi_transport(); }

}  // namespace sparsecast

#endif
