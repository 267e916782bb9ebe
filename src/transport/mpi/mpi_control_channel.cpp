// SPDX-License-Identifier: Apache-2.0

// A control channel over MPI: the star of control/star_group.hpp with point-to-point messages. A part of it (split) is
// another star on the same communicator, with another tag. So no MPI call is needed that waits without a deadline.

#include "sparsecast/mpi_transport.hpp"

#ifdef SPARSECAST_HAVE_MPI

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <string>

#include "transport/control/blobs.hpp"
#include "transport/control/link.hpp"
#include "transport/control/star_group.hpp"
#include "transport/mpi/mpi_operation.hpp"

namespace sparsecast {
namespace {

// The links of the star: point-to-point messages, so that no transfer waits for a third rank, and errors can name a
// silent rank.

using std::chrono::steady_clock;

/// Both ends are in lockstep, so a peer is at most a message or two ahead.
constexpr std::size_t kMostWaiting = 8;

struct MpiMessageHeader {
  std::uint32_t type = 0;
  std::uint32_t reserved = 0;
};

class MpiLink final : public Link {
 public:
  /// Creates a link to `peer`, a rank of the communicator; errors call it `name`.
  MpiLink(std::shared_ptr<MpiCommunicator> communicator, int peer, int tag, std::string name,
          std::uint64_t max_body_bytes);
  ~MpiLink() override;

  const std::string& name() const noexcept override { return name_; }
  void send(MessageType type, std::span<const std::byte> body, Deadline deadline) override;
  ControlMessage receive(Deadline deadline, std::span<const std::unique_ptr<Link>> others = {}) override;
  std::optional<std::string> given_up() override;
  /// Does nothing, because MPI delivers messages after the send.
  void linger(Deadline) noexcept override {}

 private:
  struct Arrival;
  struct Departure;
  /// Receives messages that have arrived, until kMostWaiting are waiting.
  void fill();

  std::shared_ptr<MpiCommunicator> communicator_;
  int peer_;
  int tag_;
  std::string name_;
  std::uint64_t max_body_bytes_;
  std::unique_ptr<Arrival> arrival_;  ///< A message that MPI is still receiving.
  std::deque<ControlMessage> waiting_;
};

struct MpiLink::Arrival final : MpiOperation {
  Bytes message;
};

struct MpiLink::Departure final : MpiOperation {
  Bytes message;
};

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
        communicator_->leave_behind();  // A message is left that nobody receives.
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

// The control channel.

constexpr std::chrono::seconds kSetupTime{60};
constexpr std::uint64_t kMaxBlobBytes = std::uint64_t{1} << 20;
constexpr const char* kWho = "mpi control channel";

struct PartRequest {
  SplitChoice choice;
  std::int32_t next_tag = 0;
};

/// Returns whether threads may call MPI concurrently.
bool any_thread_may_call_mpi() {
  int level = MPI_THREAD_SINGLE;
  check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
  return level == MPI_THREAD_MULTIPLE;
}

class MpiControlChannel final : public ControlChannel, public std::enable_shared_from_this<MpiControlChannel> {
 public:
  /// `ranks` are the communicator's ranks that form the channel, in the order of their new ranks.
  MpiControlChannel(std::shared_ptr<MpiCommunicator> communicator, std::vector<int> ranks, int tag)
      : communicator_(std::move(communicator)),
        ranks_(std::move(ranks)),
        star_(kWho, own_rank(), size_of(), kMaxBlobBytes, any_thread_may_call_mpi()) {
    communicator_->next_tag = tag + 1;
    const auto link_to = [&](int rank) {
      return std::make_unique<MpiLink>(communicator_, ranks_[static_cast<std::size_t>(rank)], tag,
                                       fmt::format("rank {}", rank), star_.max_body_bytes());
    };
    if (star_.rank() != 0) {
      star_.connect_hub(link_to(0));
      return;
    }
    std::vector<std::unique_ptr<Link>> members(1);
    for (int r = 1; r < star_.size(); ++r) members.push_back(link_to(r));
    star_.connect_members(std::move(members));
  }
  ~MpiControlChannel() override {
    star_.settle_abort();
    // The messages about a failure may never be received.
    if (star_.broken()) communicator_->leave_behind();
  }
  MpiControlChannel(const MpiControlChannel&) = delete;
  MpiControlChannel& operator=(const MpiControlChannel&) = delete;

  int rank() const noexcept override { return star_.rank(); }
  int size() const noexcept override { return star_.size(); }
  std::uint64_t max_blob_bytes() const noexcept override { return star_.max_blob_bytes(); }
  std::vector<Bytes> all_gather(std::span<const std::byte> own, Deadline deadline) override {
    return star_.all_gather(own, deadline);
  }
  Bytes reduce(std::span<const std::byte> own, const Combine& combine, Deadline deadline) override {
    return star_.reduce(own, combine, deadline);
  }
  Bytes broadcast(std::span<const std::byte> own, Deadline deadline) override { return star_.broadcast(own, deadline); }
  int agree(int status, int coordinator, Deadline deadline) override {
    return star_.agree(status, coordinator, deadline);
  }
  std::shared_ptr<ControlChannel> split(int color, int key, Deadline deadline) override;
  void abort(const std::string& reason) noexcept override {
    star_.abort(reason);
    parts_.abort(reason);
  }
  std::optional<std::string> aborted() noexcept override { return star_.aborted(); }

  const std::shared_ptr<MpiCommunicator>& communicator() const noexcept { return communicator_; }

 private:
  int own_rank() const {
    return static_cast<int>(std::find(ranks_.begin(), ranks_.end(), communicator_->rank()) - ranks_.begin());
  }
  int size_of() const { return static_cast<int>(ranks_.size()); }

  std::shared_ptr<MpiCommunicator> communicator_;
  std::vector<int> ranks_;
  StarGroup star_;
  ChildChannels parts_;
};

std::shared_ptr<ControlChannel> MpiControlChannel::split(int color, int key, Deadline deadline) {
  const PartRequest own{{color, key}, communicator_->next_tag};
  const std::vector<Bytes> all = all_gather(bytes_of(own), deadline);
  std::vector<SplitChoice> choices;
  int tag = 0;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const auto request = value_of<PartRequest>(all[r], fmt::format("rank {}", r));
    choices.push_back(request.choice);
    tag = std::max(tag, request.next_tag);
  }
  communicator_->next_tag = tag + 1;
  if (color < 0) return nullptr;
  int* largest = nullptr;
  int known = 0;
  check_mpi(MPI_Comm_get_attr(communicator_->handle(), MPI_TAG_UB, &largest, &known), "MPI_Comm_get_attr");
  if (known != 0 && tag > *largest) {
    throw Error(ErrorCode::kUnsupported, fmt::format("this MPI has {} tags, and as many parts were made", *largest),
                kWho);
  }
  std::vector<int> ranks = ranks_of_color(choices, color);
  for (int& r : ranks) r = ranks_[static_cast<std::size_t>(r)];
  auto part = std::make_shared<MpiControlChannel>(communicator_, std::move(ranks), tag);
  part->star_.set_parent([whole = weak_from_this()]() -> std::optional<std::string> {
    const auto here = whole.lock();
    return here ? here->aborted() : std::nullopt;
  });
  return parts_.add(std::move(part));
}

}  // namespace

std::shared_ptr<MpiCommunicator> communicator_of(const ControlChannel& control) {
  const auto* const channel = dynamic_cast<const MpiControlChannel*>(&control);
  return channel != nullptr && channel->size() == channel->communicator()->size() ? channel->communicator() : nullptr;
}

std::shared_ptr<ControlChannel> make_mpi_control_channel(const void* communicator) {
  require_running_mpi(kWho);
  const MPI_Comm parent = communicator == nullptr ? MPI_COMM_WORLD : *static_cast<const MPI_Comm*>(communicator);
  try {
    auto own = std::make_shared<MpiCommunicator>(parent, std::chrono::steady_clock::now() + kSetupTime);
    std::vector<int> ranks(static_cast<std::size_t>(own->size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return std::make_shared<MpiControlChannel>(std::move(own), std::move(ranks), 1);
  } catch (const Error& error) {
    throw error.within(kWho);
  }
}

}  // namespace sparsecast

#else

namespace sparsecast {

std::shared_ptr<ControlChannel> make_mpi_control_channel(const void*) {
  throw Error(ErrorCode::kUnsupported, "this build of the library has no MPI transport");
}

}  // namespace sparsecast

#endif
